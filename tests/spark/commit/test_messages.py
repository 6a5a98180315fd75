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
from tests.support.kafka.fixtures import kafka, topics, write_site

__all__ = ["kafka", "topics"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

_BEGIN = """
    import json, os, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import first_time, kill_executor
    from txpool import failpoints
    from txpool.resources.kafka.wire import Wire
    from txpool.spark import messages, write_messages
    from txpool.tm import ambient

    folder = sys.argv[1]
    os.chdir(folder)
    spark = SparkSession.builder.getOrCreate()
    txpool.configure("txpool.properties")


    def numbers(first, count):
        text = "cast(id as string)"
        return spark.range(first, first + count, 1, 2).selectExpr(f"{text} key", f"cast({text} as binary) value")
"""
# A cluster, and a transaction for each way to lose an attempt of the first partition.
_LOSING = (
    _BEGIN
    + """

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
                send = Wire.send

                def a_part(wire, producer, records, deadline):
                    send(wire, producer, records[:1], deadline)
                    kill_executor()

                Wire.send = a_part


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
    print(json.dumps([said, refused]))
    spark.stop()
"""
)
_DRIVER = (
    _BEGIN
    + """
    with txpool.transaction():
        write_messages(numbers(int(sys.argv[3]), 4), "out.properties")
        failpoints.arm(sys.argv[2], "kill")
"""
)


def values(kafka: Broker, topic: str) -> list[int]:
    return sorted(int(each.value) for each in kafka.committed(topic))


def recover(folder: Path) -> None:
    file = folder / "recovery.properties"
    file.write_text(file.read_text().replace("orders.properties, in.properties, ", ""))
    with closing(RecoveryManager(file)) as manager:
        report = manager.scan()
    assert report.unreachable == report.errors == {}
    assert (report.heuristics, report.alarms) == ((), ())


def test_each_row_is_sent_once_whichever_attempt_is_lost(
    local_cluster: Callable[..., str], kafka: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    write_site(tmp_path, kafka, topics)
    output = local_cluster(_LOSING, str(tmp_path))
    said, (too_long, no_messages) = json.loads(output.splitlines()[-1])
    assert said == [[2, 2, True]] * 3
    assert "at most 300 s" in too_long
    assert "has no column value" in no_messages or "id (bigint)" in no_messages
    assert values(kafka, topics[1]) == [*range(12)]


def test_a_killed_drivers_rows_are_sent_if_it_has_decided(
    spark_process: Callable[..., subprocess.Popen[str]], kafka: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    write_site(tmp_path, kafka, topics)
    points = "coordinator.prepared", "coordinator.decided"
    drivers = [spark_process(_DRIVER, str(tmp_path), point, str(4 * n)) for n, point in enumerate(points)]
    for number, driver in enumerate(drivers):
        driver.communicate(timeout=240)
        assert driver.returncode == -signal.SIGKILL, (tmp_path / f"script_{number}.err").read_text()[-8000:]
    assert values(kafka, topics[1]) == []
    recover(tmp_path)
    assert values(kafka, topics[1]) == [4, 5, 6, 7]
    admin = kafka.admin()
    try:
        open_now = admin.list_transactions(state_filters=["Ongoing"])
    finally:
        admin.close()
    assert [each for found in open_now.values() for each in found] == []
