"""Spark drivers that write folders of files beside databases, and may be killed.

`python -m tests.crash.spark_files_driver` in a site's folder reads `orders.json` and writes a line of `answers` for
each order. One order may be the first process's own, whose Java ends with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import txpool
from tests.crash.attached_drivers import (
    DRIVER,
    WORKER,
    Answer,
    attached,
    kill,
    let_tasks_end,
    run_child,
    scan,
    start,
)
from tests.spark.losing_tasks import first_time
from txpool import failpoints
from txpool.spark import write_files, write_table

PARTITIONS, ROWS = 2, 10
#: What each transaction writes: a new folder, a folder that it overwrites, and a table, all from tasks; and another
#: database's table.
NEW, LATEST, ONE, TWO = "new", "latest", "one", "two"


@dataclass(frozen=True)
class Order:
    """One transaction of one driver, and the recovery that follows."""

    number: int
    #: The driver's failpoints.
    points: str = ""
    #: In which of the first three a task is stopped: the first attempt of the first partition, between two rows.
    task_in: str = ""
    #: Who is killed there.
    kills: str = WORKER
    #: Failpoints of a recovery before the last.
    recovery: str = ""
    #: Whether a marked datasource decides.
    marked: bool = False
    #: Whether it is the first process's own.
    own: bool = False


def rows_of(number: int) -> list[int]:
    return [*range(ROWS * number, ROWS * (number + 1))]


@dataclass(frozen=True)
class Stops:
    """For mapInArrow: the rows go on, and somebody is killed between two of them."""

    order: Order
    driver: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            if first_time(Path(f"stopped-{self.order.number}")):
                kill(self.order.kills, self.driver, self.order.number)
            yield batch.slice(1)


def drive(order: Order, spark: SparkSession) -> Answer:
    """One transaction: 0 if it has committed, 1 if it has rolled back, 2 if that is in doubt."""
    rows = spark.range(order.number * ROWS, (order.number + 1) * ROWS, numPartitions=PARTITIONS)
    stopping = rows.mapInArrow(Stops(order, os.getpid()), rows.schema)

    def to(target: str) -> DataFrame:
        return stopping if order.task_in == target else rows

    failpoints._arm_from_environment(order.points)
    txpool.configure("txpool.properties")
    answer = Answer(0)
    try:
        with txpool.transaction():
            write_files(to(NEW), "exports.properties", f"n{order.number}", format="csv")
            write_files(to(LATEST), "exports.properties", LATEST, format="csv", mode="overwrite")
            write_table(to(ONE), "one.properties", "t", mode="append")
            with txpool.connect("two.properties") as two:
                two.cursor().executemany("insert into t values (%s)", [(row,) for row in rows_of(order.number)])
            if order.marked:
                txpool.connect("ledger.properties").execute("insert into t values (?)", (order.number,))
    except txpool.TransactionInDoubt as error:
        answer = Answer(2, str(error))
    except Exception as error:
        answer = Answer(1, f"{error!r} {getattr(error, '__notes__', '')}")
    return answer


def look(exports: Path = Path("exports")) -> dict[str, list[object]]:
    """The folders as any program finds them: the rows, and the marks with what stands in them."""
    found: dict[str, list[object]] = {}
    for folder in exports.iterdir():
        if not folder.name.startswith("."):
            files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            rows = sorted(int(row) for file in files if file.name[0] != "_" for row in file.read_text().split())
            found[folder.name] = [rows, {file.name: file.read_text() for file in files if file.name[0] == "_"}]
    return found


def _recover(points: str) -> Answer:
    failpoints._arm_from_environment(points)
    return scan()


def _serve(orders: list[Order]) -> None:
    with open("answers", "w") as answers:
        for order in orders:
            answer = run_child(lambda order=order: drive(order, SparkSession(attached())))
            before = look()
            if order.task_in and order.kills == DRIVER:
                let_tasks_end(order.number)
            died = run_child(lambda order=order: _recover(order.recovery)) if order.recovery else Answer(0)
            told = {"driver": asdict(answer), "before": before, "died": asdict(died)}
            ended = run_child(scan)
            answers.write(json.dumps({**told, "ended": asdict(ended), "after": look()}) + "\n")
            answers.flush()


def main() -> None:
    orders = [Order(**each) for each in json.loads(Path("orders.json").read_text())]
    spark = start(lambda: _serve([order for order in orders if not order.own]))
    for order in orders:
        if order.own:
            Path("own").write_text(json.dumps(asdict(drive(order, spark))))
    os._exit(0)  # it is alive, so Java is not, and cannot be stopped


if __name__ == "__main__":
    main()
