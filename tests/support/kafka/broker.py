"""A Kafka broker out of Maven: one node of KRaft, on free ports, in a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import UnknownTopicOrPartitionError
from tests.support import maven
from tests.support.children import WITH_ITS_PARENT
from tests.support.ports import free_ports, listens
from tests.support.waiting import until

_POM = Path(__file__).with_name("pom.xml")
#: The broker ends a transaction after this time by itself, in milliseconds: the default of a stock broker.
TIMEOUT = 900_000
#: The version without KAFKA-20734, which loses markers if a broker is killed.
_VERSION = "4.2.2"
_CLUSTER = "dHhwb29sLXRlc3RzLTAwMQ"
_LOG = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


def find_classpath(version: str = _VERSION) -> str | None:
    """Kafka's classes, which Maven brings; None if it, or Java, is missing."""
    return maven.find_classpath(_POM, kafka=version)


def _are_known(admin: KafkaAdminClient, topics: Sequence[str]) -> bool:
    with suppress(UnknownTopicOrPartitionError):
        return all(each["partitions"] for each in admin.describe_topics([*topics]))
    return False


class Broker:
    """A broker in a folder."""

    def __init__(self, folder: Path, classpath: str, **more: str) -> None:
        self.port, controller = free_ports(2)
        self.folder = folder
        self._classpath = classpath
        self._config = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.max.timeout.ms": str(TIMEOUT),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            **more,
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        (folder / "log4j2.properties").write_text(_LOG)
        self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._config)).wait(600)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options.append(f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}")
        with (self.folder / "broker.log").open("ab") as log:
            command = [*WITH_ITS_PARENT, "java", *options, "-cp", self._classpath, main, *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def start(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._config))
        until(self._answers, 600, pause=0.05)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "broker.log").read_text()[-4000:]
        return listens(self.port)

    def kill(self) -> None:
        assert self._process is not None, "it was not started here: others use it, too"
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.address)

    def create_topics(self, *names: str, partitions: int = 1) -> None:
        admin = self.admin()
        try:
            admin.create_topics([NewTopic(name, partitions, 1) for name in names])
            until(lambda: _are_known(admin, names))  # the broker learns of them a moment after its controller
        finally:
            admin.close()

    def told(self, topic: str, count: int) -> list[str]:
        """The first so many messages, as the distribution's own console consumer reads them."""
        options = {"bootstrap-server": self.address, "topic": topic, "isolation-level": "read_committed"}
        options |= {"max-messages": str(count), "timeout-ms": "120000"}
        arguments = [f"--{key}={value}" for key, value in options.items()]
        command = ["java", "-Xmx256m", "-cp", self._classpath, "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        done = subprocess.run(
            [*command, *arguments, "--from-beginning"], check=True, timeout=400, capture_output=True, text=True
        )
        return done.stdout.splitlines()

    def committed(self, topic: str, partitions: Sequence[int] = (0,)) -> list[Any]:
        """All that readers with isolation level read_committed see."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.address, isolation_level="read_committed", enable_auto_commit=False
        )
        try:
            places = [TopicPartition(topic, each) for each in partitions]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends = consumer.end_offsets(places)
            found: list[Any] = []
            while any(consumer.position(place) < ends[place] for place in places):
                for records in consumer.poll(1000).values():
                    found += records
            return found
        finally:
            consumer.close()
