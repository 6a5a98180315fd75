"""Spark drivers over JDBC that may be killed, at the price of a fork: one Java has Spark, and each driver is attached.

`python -m tests.crash.spark_jdbc_driver` in a site's folder reads `orders.json` and writes a line of `answers` for
each order. A driver's end leaves Java and its Python workers alone: so the tasks of a dead driver go on, and prepare
later. The last order is the first process's own, whose Java ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import txpool
from recovery.cli import main as recovery
from tests.crash.jdbc_site import H2_LEDGER, MARIADB_JDBC, POSTGRESQL, POSTGRESQL_JDBC
from tests.spark.losing_tasks import first_time, kill_executor
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
#: Whom a task kills: its own process, the driver's Python, or Spark's Java, which is driver and executor at once.
WORKER, DRIVER, JAVA = "worker", "driver", "java"
#: How long a task whose driver was killed waits for recovery, in seconds.
_PATIENCE = 60.0


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


@dataclass
class Answer:
    """What became of an order: the exit code, or the signal as a negative number; what was said, and counted."""

    end: int
    said: str = ""
    driver: dict[str, int] = field(default_factory=dict)
    task: dict[str, int] = field(default_factory=dict)


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
        if self.order.kills == WORKER:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.order.kills == JAVA:
            kill_executor()
        else:
            os.kill(self.driver, signal.SIGKILL)
            _wait_for(Path(f"recovered-{self.order.number}").exists)

    def _count(self) -> None:
        for point in failpoints.POINTS:
            failpoints.arm(point, "count")
        place = Path(f"counted-{self.order.number}")
        _ambient().after_completion(lambda status: place.write_text(json.dumps(_reached())))


def _ambient() -> Any:
    return ambient.current()


def _reached() -> dict[str, int]:
    return {point: times for point in failpoints.POINTS if (times := failpoints.reached(point))}


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def drive(order: Order, spark: SparkContext) -> Answer:
    """One transaction: 0 where it has committed, 1 where it has rolled back, 2 where that is in doubt."""
    if order.counts:
        for point in failpoints.POINTS:
            failpoints.arm(point, "count")
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
        answer.driver, answer.task = _reached(), json.loads(Path(f"counted-{order.number}").read_text())
    return answer


def _attached() -> SparkContext:
    """Spark's context in the Java that the first process has started."""
    gateway: Any = launch_gateway()
    java = gateway.jvm.org.apache.spark
    context = java.api.java.JavaSparkContext(java.SparkContext.getOrCreate())
    return SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))


def _run_child(act: Callable[[], Answer]) -> Answer:
    """Act in a child, and hear what becomes of it."""
    hearing, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hearing)
            with open(telling, "w") as out:
                json.dump(asdict(act()), out)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        finally:
            os._exit(0)
    os.close(telling)
    with open(hearing) as answer:
        text = answer.read()
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Answer(**json.loads(text)) if end == 0 else Answer(end)


def _drive_attached(order: Order) -> Answer:
    return drive(order, _attached())


def _scan() -> Answer:
    """One scan by the command, and what it prints."""
    with open("scanned", "w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.argv = ["txpool-recovery", "scan", "--conf", "recovery.properties"]
    end: Any = 0
    try:
        recovery()
    except SystemExit as error:
        end = error.code or 0
    sys.stdout.flush()
    return Answer(int(end), Path("scanned").read_text())


def _wait_until_idle() -> Answer:
    """Wait until no task of a dead driver runs any more."""
    tracker = _attached()._jsc.statusTracker()
    _wait_for(lambda: not len(tracker.getActiveJobIds()))
    return Answer(0)


def _serve(orders: list[Order]) -> None:
    with open("answers", "w") as answers:
        for order in orders:
            answer = _run_child(_scan if order.scan else lambda order=order: _drive_attached(order))
            if order.task_at and order.kills == DRIVER:
                _run_child(_scan)  # it may find a branch whose session is still there, and leave that alone
                Path(f"recovered-{order.number}").touch()
                _run_child(_wait_until_idle)
            answers.write(json.dumps(asdict(answer)) + "\n")
            answers.flush()


def main() -> None:
    *orders, last = (Order(**each) for each in json.loads(Path("orders.json").read_text()))
    hearing, telling = os.pipe()
    server = os.fork()  # before Spark, whose connections are this process's
    if server == 0:
        try:
            os.close(telling)
            with open(hearing) as words:
                os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = words.readline().split()
            _serve(orders)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    os.close(hearing)
    spark = SparkSession.builder.getOrCreate()
    gateway: Any = spark.sparkContext._gateway
    with open(telling, "w") as words:
        words.write(f"{gateway.gateway_parameters.port} {gateway.gateway_parameters.auth_token}\n")
    assert os.waitpid(server, 0)[1] == 0
    answer = drive(last, spark.sparkContext)
    Path("last").write_text(json.dumps(asdict(answer)))
    os._exit(0)  # it is alive, so Java is not, and cannot be stopped


if __name__ == "__main__":
    main()
