"""Spark drivers over JDBC that may be killed.

`python -m tests.crash.spark_jdbc_driver` in a site's folder reads `orders.json` and writes a line of `answers` for
each order. A task of a dead driver goes on, and prepares later. The last order is the first process's own, whose Java
ends with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext

import txpool
from tests.crash.attached_drivers import (
    DRIVER,
    WORKER,
    Answer,
    attached,
    count_points,
    kill,
    let_tasks_end,
    reached,
    run_child,
    scan,
    start,
)
from tests.crash.jdbc_site import H2_LEDGER, MARIADB_JDBC, POSTGRESQL, POSTGRESQL_JDBC
from tests.spark.losing_tasks import first_time
from txpool import failpoints
from txpool.spark import foreach_partition
from txpool.tm import ambient

#: Where the tasks write, in this order, with the parameter of each.
WRITTEN = {POSTGRESQL: "%s", POSTGRESQL_JDBC: "?", MARIADB_JDBC: "?"}
PARTITIONS, ROWS = 2, 4
#: The number of the row that the driver writes itself.
OWN = 9
#: Where a task may be stopped beside at its failpoints.
BEGINS, HAS_WRITTEN, IS_PREPARED = "begins", "has written", "is prepared"


@dataclass(frozen=True)
class Order:
    """One transaction of one driver; or one scan of recovery."""

    number: int = 0
    #: The driver's failpoints.
    points: str = ""
    #: Where the first attempt of the first partition stops; a failpoint is followed by @ and a number.
    task_at: str = ""
    #: Who is killed there. A task whose driver is gone waits until recovery has run, and goes on.
    kills: str = WORKER
    #: Whether a marked datasource decides.
    marked: bool = False
    #: Whether the points are counted, in a log of its own.
    counts: bool = False
    scan: bool = False


@dataclass(frozen=True)
class Partition:
    """What a task runs: it writes its rows into each database."""

    order: Order
    driver: int

    def __call__(self, rows: Iterator[int]) -> None:
        failpoints.disarm()  # the worker may have served another order
        numbers = [10 * self.order.number + row for row in rows]
        if self.order.counts:
            self._count()
        at = self.order.task_at if self.order.task_at and first_time(Path(f"stopped-{self.order.number}")) else ""
        point, _, nth = at.partition("@")
        if nth:
            failpoints.arm(point, self._stop, nth=int(nth))
        if at == IS_PREPARED:
            _ambient().after_completion(lambda status: self._stop())
        if at == BEGINS:
            self._stop()
        for name, parameter in WRITTEN.items():
            cursor = txpool.connect(f"{name}.properties").cursor()
            for number in numbers:
                cursor.execute(f"insert into t (id) values ({parameter})", [number])
            if at == HAS_WRITTEN and name == POSTGRESQL_JDBC:
                self._stop()

    def _stop(self) -> None:
        kill(self.order.kills, self.driver, self.order.number)

    def _count(self) -> None:
        count_points()
        place = Path(f"counted-{self.order.number}")
        _ambient().after_completion(lambda status: place.write_text(json.dumps(reached())))


def _ambient() -> Any:
    return ambient.current()


def drive(order: Order, spark: SparkContext) -> Answer:
    """One transaction: 0 where it has committed, 1 where it has rolled back, 2 where that is in doubt."""
    if order.counts:
        count_points()
    failpoints._arm_from_environment(order.points)
    log = {"log_url": f"sqlite:///counted-log-{order.number}"} if order.counts else {}
    txpool.configure("txpool.properties", **log)
    answer = Answer(0)
    try:
        with txpool.transaction():
            rows = spark.parallelize(range(ROWS), PARTITIONS)
            foreach_partition(rows, Partition(order, os.getpid()), datasources=[f"{n}.properties" for n in WRITTEN])
            for name in (POSTGRESQL_JDBC, *([H2_LEDGER] if order.marked else [])):
                cursor = txpool.connect(f"{name}.properties").cursor()
                cursor.execute("insert into t (id) values (?)", [10 * order.number + OWN])
    except txpool.TransactionInDoubt as error:
        answer = Answer(2, str(error))
    except Exception as error:
        answer = Answer(1, f"{error!r} {getattr(error, '__notes__', '')}")
    if order.counts:
        answer.driver, answer.task = reached(), json.loads(Path(f"counted-{order.number}").read_text())
    return answer


def _drive_attached(order: Order) -> Answer:
    return drive(order, attached())


def _serve(orders: list[Order]) -> None:
    with open("answers", "w") as answers:
        for order in orders:
            answer = run_child(scan if order.scan else lambda order=order: _drive_attached(order))
            if order.task_at and order.kills == DRIVER:
                let_tasks_end(order.number)
            answers.write(json.dumps(asdict(answer)) + "\n")
            answers.flush()


def main() -> None:
    *orders, last = (Order(**each) for each in json.loads(Path("orders.json").read_text()))
    spark = start(lambda: _serve(orders))
    answer = drive(last, spark.sparkContext)
    Path("last").write_text(json.dumps(asdict(answer)))
    os._exit(0)  # it is alive, so Java is not, and cannot be stopped


if __name__ == "__main__":
    main()
