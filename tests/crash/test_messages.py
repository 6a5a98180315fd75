"""Consumers, recovery and the broker, or the queues' server, are killed: each message is one row, and one goes out."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import txpool
from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.consumers import EXPECTED, MESSAGES, at_work
from tests.crash.eventually import Eventually
from tests.crash.judged import require_atomic
from tests.crash.spark_senders import SparkWork
from tests.support.jms import fixtures as jms
from tests.support.jms.broker import Artemis
from tests.support.kafka import fixtures as of_kafka
from tests.support.kafka.broker import Broker
from tests.support.message_site import write_files

pytestmark = pytest.mark.slow


@pytest.mark.costly
def test_kafka(own_kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    monkeypatch.chdir(tmp_path)
    topics = of_kafka.create_topics(own_kafka)
    of_kafka.write_site(tmp_path, own_kafka, topics, more="parking.after = 1000\n")
    with at_work(tmp_path, own_kafka) as work:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
        reports = work.survive()
        assert [each for report in reports for each in report.alarms] == []
        with txpool.transaction():
            txpool.session("out.properties").send("end")
        *sent, end = own_kafka.told(topics[1], MESSAGES + 1)
    assert end == "end"
    assert Counter(sent) == EXPECTED
    require_atomic(dict.fromkeys(EXPECTED, "committed"), {"rows": work.done(), "topic": sent})


@pytest.mark.spark
@pytest.mark.long
def test_spark(
    own_kafka: Broker,
    spark_process: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    """Jobs send rows into a topic; the processes of their tasks are killed, too."""
    monkeypatch.chdir(tmp_path)
    topics = of_kafka.create_topics(own_kafka)
    of_kafka.write_site(tmp_path, own_kafka, topics)
    with at_work(tmp_path, own_kafka, partial(SparkWork, spark_process)) as work:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
        reports = work.survive()
    assert [each for report in reports for each in report.alarms] == []
    assert isinstance(work, SparkWork)
    sent = own_kafka.told(topics[1], len(work.expected))
    assert Counter(sent) == work.expected
    work.judge(sent)
    assert len(own_kafka.committed(topics[1])) == len(work.expected)


class _Server:
    """PostgreSQL, as what is killed beside the consumer."""

    def __init__(self, databases: Databases) -> None:
        self._server = databases.server

    def kill(self) -> None:
        self._server.stop("immediate")

    def start(self) -> None:
        self._server.start()


@pytest.mark.costly
def test_queue(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    """Both queues are in PostgreSQL, which prepares, beside the marked file with the rows."""
    monkeypatch.chdir(tmp_path)
    queue = "driver = sql-queue\nqueue = {}\nqueue.datasource = queues.properties\nparking.after = 1000\n"
    place = f"driver = psycopg\nurl = {databases.url('one')}\npassword = {databases.server.password}\n"
    write_files(tmp_path, "n1", {"queues": place, "in": queue.format("in"), "out": queue.format("out")}, trusted=False)
    (tmp_path / "queues.properties").chmod(0o600)
    with at_work(tmp_path, _Server(databases)) as work:
        conf, servers, dsns = tmp_path / "recovery.properties", [databases.server], [databases.dsn("one")]
        eventually.in_the(places.of_files(conf, marked=["orders.db"], servers=servers, dsns=dsns))
        work.survive()
    rows = databases.rows("one", "select queue, convert_from(body, 'UTF8') from txpool_spark.messages")
    assert {queue for queue, _ in rows} == {"out"}
    assert Counter(body for _, body in rows) == EXPECTED
    require_atomic(dict.fromkeys(EXPECTED, "committed"), {"rows": work.done(), "queue": [body for _, body in rows]})
    assert databases.prepared() == []


@pytest.mark.costly
def test_jms(own_artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    monkeypatch.chdir(tmp_path)
    queues = jms.create_queues(own_artemis, prefix="crash.")  # their messages are delivered however often
    jms.write_site(tmp_path, own_artemis, queues, tries=1000)
    with at_work(tmp_path, own_artemis) as work:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
        work.survive()
    sent = own_artemis.bodies(queues[1])
    assert Counter(sent) == EXPECTED
    require_atomic(dict.fromkeys(EXPECTED, "committed"), {"rows": work.done(), "queue": sent})
    assert own_artemis.bodies(queues[0]) == []
