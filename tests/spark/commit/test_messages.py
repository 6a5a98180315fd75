"""Rows that Spark's tasks send to Kafka: each is there once, whichever attempt or driver is lost."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from recovery.manager import RecoveryManager
from tests.support.kafka.broker import Broker
from tests.support.kafka.fixtures import write_site
from tests.support.shared import node_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: A cluster: a transaction for each way to lose an attempt of the first partition, and two whose driver is killed. One
#: of these is prepared then, and the other decided.
_SCRIPT = """
    import json, os, sys, threading, time
    from pathlib import Path

    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import first_time, kill_executor
    from txpool import failpoints
    from txpool.resources.kafka.requests import KafkaRequests
    from txpool.spark import messages, write_messages
    from txpool.tm import ambient

    folder = sys.argv[1]
    os.chdir(folder)
    spark = SparkSession.builder.getOrCreate()
    txpool.configure("txpool.properties")


    def numbers(first, count):
        text = "cast(id as string)"
        return spark.range(first, first + count, 1, 2).selectExpr(f"{text} key", f"cast({text} as binary) value")


    class Fails(messages._Send):
        def __call__(self, rows):
            super().__call__(rows)
            if first_time(Path(folder, "fails")):
                raise OSError("once")


    class DiesPrepared(messages._Send):
        def __call__(self, rows):
            super().__call__(rows)
            if first_time(Path(folder, "dies prepared")):
                ambient.current().after_completion(lambda status: kill_executor())


    class DiesHavingSentAPart(messages._Send):
        def __call__(self, rows):
            super().__call__(rows)
            if first_time(Path(folder, "dies having sent a part")):
                send = KafkaRequests.send

                def a_part(requests, producer, records, deadline, *, size):
                    send(requests, producer, records[:1], deadline)
                    kill_executor()

                KafkaRequests.send = a_part


    said = []
    plain = messages._Send
    for number, how in enumerate((Fails, DiesPrepared, DiesHavingSentAPart)):
        messages._Send = how
        with txpool.transaction():
            report = write_messages(numbers(4 * number, 4), "out.properties")
        said.append([report.partitions, report.branches, report.attempts > 2])
    messages._Send = plain
    refused = []
    for timeout, frame in ((301, numbers(0, 1)), (300, spark.range(1))):
        try:
            with txpool.transaction(timeout=timeout):
                write_messages(frame, "out.properties")
        except txpool.ProgrammingError as error:
            refused.append(str(error))
    print(json.dumps([said, refused]), flush=True)


    def send(first):
        with txpool.transaction():
            write_messages(numbers(first, 4), "out.properties")


    prepared = threading.Event()


    def stay():
        prepared.set()
        time.sleep(3600)


    failpoints.arm("coordinator.prepared", stay)
    threading.Thread(target=send, args=[12], daemon=True).start()
    prepared.wait()
    failpoints.arm("coordinator.decided", "kill")
    send(16)
"""


def values(kafka: Broker, topic: str) -> list[int]:
    return sorted(int(each.value) for each in kafka.committed(topic))


def recover(folder: Path) -> None:
    file = folder / "recovery.properties"
    file.write_text(file.read_text().replace("orders.properties, in.properties, ", ""))
    with closing(RecoveryManager(file)) as manager:
        report = manager.scan()
    assert report.unreachable == report.errors == {}
    assert (report.heuristics, report.alarms) == ((), ())


@pytest.mark.costly
def test_each_row_is_sent_once_whichever_attempt_or_driver_is_lost(
    spark_process: Callable[..., subprocess.Popen[str]], kafka: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    write_site(tmp_path, kafka, topics)
    driver = spark_process(_SCRIPT, str(tmp_path), master="local-cluster[2,1,1024]")
    output, _ = driver.communicate(timeout=1200)
    assert driver.returncode == -signal.SIGKILL, (tmp_path / "script_0.err").read_text()[-8000:]
    said, (too_long, no_messages) = json.loads(output.splitlines()[-1])
    assert said == [[2, 2, True]] * 3
    assert "at most 300 s" in too_long
    assert "has no column value" in no_messages or "id (bigint)" in no_messages
    assert values(kafka, topics[1]) == [*range(12)]
    recover(tmp_path)
    assert values(kafka, topics[1]) == [*range(12), *range(16, 20)]  # what was decided, and not what was prepared
    admin = kafka.admin()
    try:
        open_now = admin.list_transactions(state_filters=["Ongoing"])
    finally:
        admin.close()
    names = [each.transactional_id for found in open_now.values() for each in found]
    assert [each for each in names if each.startswith(f"txp1:{node_of(topics)}:")] == []
