"""Brokers that an outbox's relay delivers to: RabbitMQ and NATS of Debian's, which cannot prepare, and Maven's.

Each is on free ports, in a folder, and stopped by pid.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import nats
import pika
from nats.js.api import StreamConfig

from tests.support.children import WITH_ITS_PARENT
from tests.support.jms.broker import Artemis
from tests.support.kafka.broker import Broker
from tests.support.ports import free_ports, listens
from tests.support.waiting import until

_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
#: The header with a message's id.
ID = "txpool-id"


class OutboxBroker(ABC):
    """A broker that a relay delivers to."""

    #: What `outbox.deliver` calls it.
    name: str
    #: Why it cannot be started; empty if it can.
    missing = ""
    #: Further lines of the file of the outbox's datasource.
    keys = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = self._started(log.fileno())
        until(self._answers, 600, pause=0.05)

    @abstractmethod
    def _started(self, log: int) -> subprocess.Popen[bytes]: ...

    def kill(self) -> None:
        """Kill it with all its processes, which are a group of their own."""
        assert self._process is not None, "it was not started here: others use it, too"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        until(lambda: not listens(self.port))  # its other processes end by themselves
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / f"{self.name}.log").read_text()[-4000:]
        return listens(self.port)

    @abstractmethod
    def create(self, name: str) -> None:
        """A queue, a stream or a topic."""

    @abstractmethod
    def messages(self, name: str) -> list[tuple[str, bytes]]:
        """What is there: ids and payloads, in their order."""


class RabbitMQ(OutboxBroker):
    """A node of RabbitMQ, and the epmd that it asks."""

    name = "rabbitmq"
    missing = "" if Path(_RABBITMQ).exists() and shutil.which("epmd") else "RabbitMQ: apt-get install rabbitmq-server"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        epmd, distribution = free_ports(2)
        self._env = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }
        self._epmd: subprocess.Popen[bytes] | None = None

    def _started(self, log: int) -> subprocess.Popen[bytes]:
        if self._epmd is None:
            command = [*WITH_ITS_PARENT, "epmd", "-port", self._env["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)
        return subprocess.Popen(
            [*WITH_ITS_PARENT, _RABBITMQ],
            env=self._env,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            start_new_session=True,
        )

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(60)
            self._epmd = None

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def create(self, name: str) -> None:
        with self._connect() as connection:
            connection.channel().queue_declare(name, durable=True)

    def messages(self, name: str) -> list[tuple[str, bytes]]:
        found = []
        with self._connect() as connection:
            channel = connection.channel()
            while (got := channel.basic_get(name))[0] is not None:
                _, properties, body = got
                assert properties.headers[ID] == properties.message_id
                assert properties.delivery_mode == pika.DeliveryMode.Persistent.value
                found.append((properties.message_id, body))
        return found  # not acknowledged: they are there again


class Nats(OutboxBroker):
    """A server of NATS, with JetStream."""

    name = "nats"
    options: tuple[str, ...] = ()
    _server = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    missing = "" if _server else "NATS: apt-get install nats-server"

    def _started(self, log: int) -> subprocess.Popen[bytes]:
        options = ["-js", "-sd", str(self.folder / "js"), "-a", "127.0.0.1", "-p", str(self.port), *self.options]
        command = [*WITH_ITS_PARENT, str(self._server), *options]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def create(self, name: str) -> None:
        async def create() -> None:
            client = await nats.connect(self.address)
            await client.jetstream().add_stream(StreamConfig(name, subjects=[name], duplicate_window=0.1))
            await client.close()

        asyncio.run(create())

    def messages(self, name: str) -> list[tuple[str, bytes]]:
        async def read() -> list[tuple[str, bytes]]:
            client = await nats.connect(self.address)
            stream = client.jetstream()
            found = []
            for number in range(1, (await stream.stream_info(name)).state.last_seq + 1):
                message = await stream.get_msg(name, number)
                assert message.headers is not None
                assert message.headers[ID] == message.headers["Nats-Msg-Id"]
                found.append((message.headers[ID], message.data or b""))
            await client.close()
            return found

        return asyncio.run(read())


class _OfOthers(OutboxBroker):
    """A broker that other tests use, too."""

    _broker: Broker | Artemis

    def _started(self, log: int) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def start(self) -> None:
        self._broker.start()

    def kill(self) -> None:
        self._broker.kill()

    def close(self) -> None:
        """It belongs to others."""


class Kafka(_OfOthers):
    """The broker of the other tests of Kafka."""

    name = "kafka"

    def __init__(self, folder: Path, broker: Broker) -> None:
        super().__init__(folder)
        self._broker: Broker = broker
        self.port = broker.port

    def create(self, name: str) -> None:
        self._broker.create_topics(name)

    def messages(self, name: str, partitions: Sequence[int] = (0,)) -> list[tuple[str, bytes]]:
        return [(dict(each.headers)[ID].decode(), each.value) for each in self._broker.committed(name, partitions)]


class Jms(_OfOthers):
    """The broker of the other tests of JMS."""

    name = "jms"

    def __init__(self, folder: Path, broker: Artemis) -> None:
        super().__init__(folder)
        self._broker: Artemis = broker
        self.port = broker.port
        self.keys = f"jdbc.classpath = {broker.classpath}\n"

    def create(self, name: str) -> None:
        self._broker.create_queues(name)

    def messages(self, name: str) -> list[tuple[str, bytes]]:
        return self._broker.browsed(name)
