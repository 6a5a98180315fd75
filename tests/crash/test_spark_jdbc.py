"""Spark over JDBC: the driver is killed at each point that a job's commit reaches, and a worker at each of a task's.

Two partitions write into PostgreSQL, PostgreSQL over JDBC, and MariaDB over JDBC, inside the driver's transaction. The
log decides, or the driver's H2, which is marked. By default a sample (TXPOOL_CRASH_SEED draws the same again), and
with TXPOOL_TEST_EVERY_JDBC_POINT=1 all.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.attached_drivers import DRIVER, JAVA, Answer
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.folder_site import COMMITTED, KILLED, ROLLED_BACK
from tests.crash.jdbc_site import EVERY_POINT, H2_LEDGER, POSTGRESQL_JDBC, JdbcSite
from tests.crash.spark_jdbc_driver import (
    BEGINS,
    HAS_WRITTEN,
    IS_PREPARED,
    OWN,
    ROWS,
    WRITTEN,
    Order,
)
from tests.crash.test_failpoints_sweep import PLAIN, ROLLS_BACK, UNACCOUNTED, UNKNOWN_NO, UNKNOWN_YES, UNREACHED
from tests.support.mysql import MySQLServer
from txpool.failpoints import POINTS

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: How many kills of drivers, and at the points of a task, are tried by default.
SAMPLE, SAMPLE_OF_TASKS = 4, 2
#: How many transactions crash before recovery comes: PostgreSQL holds 64 branches.
BATCH = 10

#: Two partitions with a branch in three databases each, and the driver's own.
_BRANCHES = 7
#: What a driver reaches: what happens first, the point, how often, and whether a kill there comes after the decision.
#: A location is noted once, so those come first.
IN_ANY = (
    (PLAIN, "log.note", 3, False),
    (PLAIN, "coordinator.begin", 1, False),
    (PLAIN, "readers.apart", 1, False),
    (PLAIN, "branch.prepare-sent", 1, False),
    (PLAIN, "coordinator.preparing", 1, False),
    (PLAIN, "coordinator.prepared", 1, False),
    (PLAIN, "coordinator.decided", 1, True),
    (PLAIN, "branch.commit-sent", _BRANCHES, True),
    (PLAIN, "coordinator.committing", 1, True),
    (PLAIN, "coordinator.one-committed", _BRANCHES, True),
    (PLAIN, "coordinator.committed", 1, True),
    (ROLLS_BACK, "coordinator.rolling-back", 1, False),
    (ROLLS_BACK, "branch.rollback-sent", _BRANCHES, False),
    (UNACCOUNTED, "log.finish", 1, False),
    (UNREACHED, "log.finish", 1, True),
)
IN_THE_LOG = (
    (PLAIN, "log.record", 1, False),
    (PLAIN, "log.recorded", 1, True),
    (UNKNOWN_NO, "log.abort", 1, False),
    (UNKNOWN_YES, "log.abort", 1, True),
)
IN_THE_MARK = (
    (PLAIN, "marked.row", 1, False),
    (PLAIN, "coordinator.marked", 1, False),
    (PLAIN, "marked.commit", 1, False),
    (PLAIN, "marked.committed", 1, True),
    (PLAIN, "marked.forget", 1, True),
)
_PREPARES = "branch.prepare-sent"
#: Where a task is stopped: at each point that it reaches, and before, between and after these.
IN_A_TASK = (BEGINS, HAS_WRITTEN, *(f"{_PREPARES}@{nth}" for nth in range(1, len(WRITTEN) + 1)), IS_PREPARED)
#: The points of the scan that ends what earlier runs have left.
SCAN_BEFORE_THE_JOB = {"recovery.listed": 1, "recovery.read": 1, "recovery.fenced": 1}
#: A process notes the largest timeout of its transactions before the first of them prepares: here it has none.
TIMEOUT_NOTED = {"log.timeout": 1}


@dataclass(frozen=True)
class Kill:
    """An order, and how it ends."""

    order: Order
    end: int
    committed: bool

    @property
    def points(self) -> set[str]:
        """The failpoints at which somebody acts."""
        found = f"{self.order.points},{self.order.task_at}".replace("=", "@").split(",")
        return {each.partition("@")[0].strip() for each in found} & POINTS.keys()

    def __str__(self) -> str:
        order = self.order
        where = f"{order.kills} at {order.task_at} of a task" if order.task_at else ""
        return f"{order.number}: {' and '.join(filter(None, (where, order.points)))}{', marked' * order.marked}"


def kills_of_drivers() -> Iterator[Kill]:
    for marked in (False, True):
        for before, point, times, committed in (*IN_ANY, *(IN_THE_MARK if marked else IN_THE_LOG)):
            if point == "log.note":
                if not marked:  # the second time, one location is noted already
                    yield from (Kill(Order(points=f"log.note=kill@{nth}"), KILLED, False) for nth in (1, 2, 2))
                continue
            for nth in range(1, times + 1):
                points = ", ".join(filter(None, (before, f"{point}=kill@{nth}")))
                yield Kill(Order(points=points, marked=marked), KILLED, committed)
    # The branches of an attempt that is lost before it is whole roll back, before the driver goes on.
    lost = f"{_PREPARES}@{len(WRITTEN) - 1}"
    for nth in range(1, len(WRITTEN)):
        yield Kill(Order(points=f"branch.rollback-sent=kill@{nth}", task_at=lost), KILLED, False)


def kills_in_tasks() -> Iterator[Kill]:
    for place in IN_A_TASK:
        yield Kill(Order(task_at=place), COMMITTED, True)
        yield Kill(Order(task_at=place, kills=DRIVER), KILLED, False)


#: The ends of the process that has started Spark, with which its Java ends, too.
LAST = (
    Kill(Order(points="coordinator.prepared=kill"), KILLED, False),
    Kill(Order(points="coordinator.decided=kill"), KILLED, True),
    Kill(Order(task_at=f"{_PREPARES}@2", kills=JAVA), ROLLED_BACK, False),
)


def chosen(last: Kill) -> list[Kill]:
    """What is tried, with its numbers: by default a sample, and of all the part that this last one has."""
    drivers, tasks = [*kills_of_drivers()], [*kills_in_tasks()]
    if EVERY_POINT:
        found = [*drivers, *tasks][LAST.index(last) :: len(LAST)]
    else:
        draw = random.Random(SEED)
        found = [
            each
            for some, count in ((drivers, SAMPLE), (tasks, SAMPLE_OF_TASKS))
            for each in sorted(draw.sample(some, count), key=some.index)
        ]
    # A location's note is there once.
    found.sort(key=lambda each: "log.note" not in each.order.points)
    return [replace(each, order=replace(each.order, number=n)) for n, each in enumerate((*found, last), 1)]


def expected(name: str, kill: Kill) -> list[int]:
    """The rows of a transaction in a database."""
    numbers = [*range(ROWS)] if name in WRITTEN else []
    if name == POSTGRESQL_JDBC or (name == H2_LEDGER and kill.order.marked):
        numbers.append(OWN)
    return [10 * kill.order.number + number for number in numbers] if kill.committed else []


@pytest.fixture
def site(
    tmp_path: Path, databases: Databases, mariadb: MySQLServer, jdbc_jars: Jars, eventually: Eventually
) -> Iterator[JdbcSite]:
    site = JdbcSite(tmp_path, databases, mariadb, jdbc_jars, (*WRITTEN, H2_LEDGER))
    eventually.in_the(places.folder_site(site, databases, [mariadb]))
    yield site
    site.close()


@pytest.mark.costly
@pytest.mark.parametrize("last", LAST if EVERY_POINT else random.Random(SEED).sample(LAST, 1), ids=str)
def test_every_point(
    spark_process: Callable[..., subprocess.Popen[str]], site: JdbcSite, last: Kill, evidence: Evidence
) -> None:
    kills = chosen(last)
    print(f"seed {SEED}", *kills, sep="\n")
    orders = [Order(counts=True, number=0)]
    for place, kill in enumerate(kills[:-1], 1):
        orders += [kill.order, *([Order(scan=True)] if place % BATCH == 0 else [])]
    answers, end = play(spark_process, site, [*orders, kills[-1].order])
    in_the_log = (*IN_ANY, *IN_THE_LOG)
    points = {point: times for before, point, times, _ in in_the_log if before == PLAIN}
    assert answers[0].driver == points | SCAN_BEFORE_THE_JOB | TIMEOUT_NOTED
    assert answers[0].task == {_PREPARES: len(WRITTEN)}
    scans = [answer for order, answer in zip(orders, answers, strict=True) if order.scan]
    assert all(scan.end == 0 and "heuristic" not in scan.said.lower() for scan in scans), scans
    ends = [answer.end for order, answer in zip(orders, answers, strict=True) if order.number]
    scanned = site.scan()
    assert site.prepared() == [], scanned.stdout + scanned.stderr
    assert scanned.returncode == 0, scanned.stdout + scanned.stderr
    assert "heuristic" not in scanned.stdout.lower(), scanned.stdout
    for kill, found in zip(kills, [*ends, end], strict=True):
        assert found == kill.end, kill
    for name in site.names:
        rows = [row for row in site.rows(name) if row >= 10]
        assert rows == [row for kill in kills for row in expected(name, kill)], name
    assert site.marks() == [], "every mark and tombstone was deleted"
    again = site.scan()
    assert again.returncode == 0, again.stdout + again.stderr
    assert site.kept() == {}
    evidence.hit(point for kill in kills for point in kill.points)
    evidence.add(Count.KILLS, len(kills))


def play(
    spark_process: Callable[..., subprocess.Popen[str]], site: JdbcSite, orders: list[Order]
) -> tuple[list[Answer], int]:
    """The orders, in drivers over one Spark: what became of each, and of the last, which is the first process's own."""
    (site.folder / "orders.json").write_text(json.dumps([asdict(order) for order in orders]))
    script = "from tests.crash.spark_jdbc_driver import main\nmain()\n"
    process = spark_process(script, master="local[2,3]", env=site.secrets)
    process.communicate(timeout=240 if len(orders) < 20 else 1200)
    answers = [Answer(**json.loads(line)) for line in (site.folder / "answers").read_text().splitlines()]
    assert len(answers) == len(orders) - 1, (site.folder / "script_0.err").read_text()[-4000:]
    last = site.folder / "last"
    return answers, json.loads(last.read_text())["end"] if last.exists() else process.returncode
