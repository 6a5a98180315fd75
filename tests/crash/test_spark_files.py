"""write_files from Spark is killed: the folders, two PostgreSQL tables and a ledger have all of a job, or none of it.

Killed are the driver at named points, a recovery after it, a worker in the middle of a write, a driver whose tasks go
on, and the Java. A folder that is overwritten is there at any time, whole; `_SUCCESS` comes last; nothing staged is
left. By default one kill (TXPOOL_CRASH_SEED draws the same again), and with TXPOOL_CRASH_FULL=1 all.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.attached_drivers import DRIVER, JAVA
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.folder_site import COMMITTED, KILLED, ROLLED_BACK, FolderSite
from tests.crash.spark_files_driver import LATEST, NEW, ONE, TWO, Order, look, rows_of
from tests.support.repository import ROOT
from tests.support.sampling import FULL
from txpool.failpoints import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Where a driver is killed, and whether that comes after the decision.
IN_ANY = {
    "files.staged": False,
    "coordinator.begin": False,
    "files.synced": False,
    "coordinator.preparing": False,
    "coordinator.prepared": False,
    "coordinator.decided": True,
    "branch.commit-sent": True,
    "coordinator.committing": True,
    "files.published": True,
    "files.published@2": True,
    "files.succeeded": True,
    "coordinator.one-committed": True,
    "coordinator.committed": True,
}
IN_THE_LOG = {"log.record": False, "log.recorded": True}
IN_THE_MARK = {"marked.row": False, "coordinator.marked": False, "marked.commit": False, "marked.committed": True}
#: Where a recovery is killed after a driver, and whether that had decided.
IN_RECOVERY = {
    "recovery.listed": False,
    "recovery.fenced": True,
    "recovery.read": False,
    "recovery.branch": False,
    "recovery.branch@2": True,
    "branch.rollback-sent": False,
    "branch.commit-sent": True,
    "files.sweeping": False,
    "files.published": True,
    "files.published@2": True,
    "files.succeeded": True,
    "recovery.forget": True,
}


@dataclass(frozen=True)
class Kill:
    """An order, and how its driver ends."""

    order: Order
    end: int
    committed: bool

    @property
    def points(self) -> set[str]:
        """The failpoints at which somebody is killed."""
        found = f"{self.order.points},{self.order.recovery}".replace("=", "@").split(",")
        return {each.partition("@")[0].strip() for each in found} & POINTS.keys()

    def __str__(self) -> str:
        order = self.order
        where = f"{order.kills} while {order.task_in} is written" if order.task_in else order.points
        return f"{order.number}: {where}{order.recovery and f', then {order.recovery}'}{', marked' * order.marked}"


def kills_of_drivers() -> Iterator[Kill]:
    for marked in (False, True):
        for point, committed in {**IN_ANY, **(IN_THE_MARK if marked else IN_THE_LOG)}.items():
            yield Kill(Order(0, points=_kill(point), marked=marked), KILLED, committed)


def kills_of_recoveries() -> Iterator[Kill]:
    for marked in (False, True):
        for point, committed in IN_RECOVERY.items():
            decided = "marked.committed" if marked else "coordinator.decided"
            # What is not prepared is swept; what is, is rolled back.
            undecided = "files.staged" if point == "files.sweeping" else "coordinator.prepared"
            first = _kill(decided if committed else undecided)
            yield Kill(Order(0, points=first, recovery=_kill(point), marked=marked), KILLED, committed)


def kills_in_tasks() -> Iterator[Kill]:
    for target in (NEW, LATEST, ONE):
        yield Kill(Order(0, task_in=target), COMMITTED, True)
        yield Kill(Order(0, task_in=target, kills=DRIVER), KILLED, False)


def _kill(point: str) -> str:
    name, _, nth = point.partition("@")
    return f"{name}=kill@{nth or 1}"


#: The ends of the process that has started Spark, with which its Java ends, too.
LAST = (
    Kill(Order(0, task_in=LATEST, kills=JAVA, own=True), ROLLED_BACK, False),
    Kill(Order(0, points=_kill("files.published@2"), own=True), KILLED, True),
)


def chosen() -> list[Kill]:
    chance = random.Random(SEED)
    last = chance.choice(LAST)
    everything = [*kills_of_drivers(), *kills_of_recoveries(), *kills_in_tasks(), last]
    found = everything if FULL else [chance.choice(everything)]
    return [replace(each, order=replace(each.order, number=number)) for number, each in enumerate(found, 1)]


class Site(FolderSite):
    """A folder of exports, two databases, a ledger, a log, and recovery."""

    def __init__(self, folder: Path, databases: Databases) -> None:
        self.folder, self.databases = folder, databases
        (folder / "exports" / LATEST).mkdir(parents=True)
        (folder / "exports" / LATEST / "part-0.csv").write_text("".join(f"{row}\n" for row in rows_of(0)))
        common = "node.name = etl\nlog.url = sqlite:///txlog\nlog.create = true\n"
        texts = {
            "exports": "driver = files\nfolder = exports\n",
            "ledger": "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n",
            "txpool": common,
            "recovery": f"{common}recovery.backoff = 0\ndatasources = "
            "exports.properties, one.properties, two.properties, ledger.properties\n",
        }
        for name in (ONE, TWO):
            texts[name] = f"driver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:PG}}\n"
            databases.execute(name, "create table t (id bigint)")
        for name, text in texts.items():
            (folder / f"{name}.properties").write_text(text)
        self.secrets = {"PG": databases.server.password}
        self.environment = os.environ | self.secrets | {"PYTHONPATH": str(ROOT)}
        (folder / "ledger.db").touch()
        made = self.run("-m", "recovery", "init", "--conf", "recovery.properties")
        assert made.returncode == 0, made.stdout + made.stderr
        self.in_the_file("create table t (id int)")

    def rows(self, name: str) -> list[int]:
        query = "select id from t order by id"
        found = self.in_the_file(query) if name == "ledger" else self.databases.rows(name, query)
        return [number for (number,) in found]

    def marks(self) -> list[tuple[Any, ...]]:
        return self.in_the_file("select xid from xids where xid <> 'txp1:identity'")

    def prepared(self) -> list[str]:
        """What is prepared or staged anywhere."""
        hidden = self.folder / "exports" / ".txpool"
        return [*self.databases.prepared(), *os.listdir(hidden / "prepared"), *os.listdir(hidden / "staged")]


@pytest.fixture
def site(tmp_path: Path, databases: Databases, eventually: Eventually) -> Site:
    site = Site(tmp_path, databases)
    eventually.in_the(places.folder_site(site, databases, ()))
    return site


def require_whole(seen: dict[str, Any], kill: Kill, latest: int) -> None:
    """What anybody sees meanwhile: each folder is whole, the former one is not lost, and `_SUCCESS` comes last."""
    assert LATEST in seen, f"{kill}: the former folder is lost"
    rows, _ = seen[LATEST]
    number = kill.order.number
    assert rows in (rows_of(latest), rows_of(number)), f"{kill}: {LATEST} is torn"
    for name, (rows, _) in seen.items():
        if name != LATEST:
            assert rows == rows_of(int(name[1:])), f"{kill}: {name} is torn"
    new = seen.get(f"n{number}", [[], {}])
    if "_SUCCESS" in new[1]:
        assert seen[LATEST][0] == rows_of(number), f"{kill}: _SUCCESS came before the last folder"


def test_killed_at_every_point(
    spark_process: Callable[..., subprocess.Popen[str]], site: Site, evidence: Evidence
) -> None:
    kills = chosen()
    print(f"seed {SEED}", *kills, sep="\n")
    told = play(spark_process, site, [kill.order for kill in kills])
    latest = 0
    for kill, answer in zip(kills, told, strict=True):
        assert answer["driver"]["end"] == kill.end, f"{kill}: {answer}"
        if kill.order.own:
            answer |= {"before": look(site.folder / "exports"), "ended": {"said": site.scan().stdout}}
            answer["after"] = look(site.folder / "exports")
        require_whole(answer["before"], kill, latest)
        if kill.order.recovery:
            assert answer["died"]["end"] == KILLED, f"{kill}: recovery did not come there: {answer['died']['said']}"
        latest = kill.order.number if kill.committed else latest
        require_whole(answer["after"], kill, latest)
        assert answer["after"][LATEST][0] == rows_of(latest), f"{kill}: {answer}"
        assert "heuristic" not in answer["ended"]["said"].lower(), f"{kill}: {answer}"
    for _ in range(2):  # a database may notice the end of a session late
        scanned = site.scan()
    assert site.prepared() == [], scanned.stdout + scanned.stderr
    assert scanned.returncode == 0, scanned.stdout + scanned.stderr
    committed = [kill.order.number for kill in kills if kill.committed]
    found = {entry.name for entry in (site.folder / "exports").iterdir()}
    assert found == {".txpool", LATEST, *(f"n{number}" for number in committed)}
    for name in (ONE, TWO):
        assert site.rows(name) == [row for number in committed for row in rows_of(number)], name
    marked = [kill.order.number for kill in kills if kill.committed and kill.order.marked]
    assert site.rows("ledger") == marked
    assert site.kept() == {}
    evidence.hit(point for kill in kills for point in kill.points)
    evidence.add(Count.KILLS, sum(1 + bool(kill.order.recovery) for kill in kills))


def play(spark_process: Callable[..., subprocess.Popen[str]], site: Site, orders: list[Order]) -> list[dict[str, Any]]:
    """The orders, in drivers over one Spark: what became of each, and what was seen. The last may be its Java's end."""
    (site.folder / "orders.json").write_text(json.dumps([asdict(order) for order in orders]))
    script = "from tests.crash.spark_files_driver import main\nmain()\n"
    process = spark_process(script, master="local[2,3]", env=site.secrets)
    process.communicate(timeout=3600 if FULL else 600)
    told = [json.loads(line) for line in (site.folder / "answers").read_text().splitlines()]
    if orders[-1].own:
        own = site.folder / "own"
        told.append({"driver": json.loads(own.read_text()) if own.exists() else {"end": process.returncode}})
    assert len(told) == len(orders), (site.folder / "script_0.err").read_text()[-4000:]
    return told
