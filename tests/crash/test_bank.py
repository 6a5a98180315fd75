"""The bank under fire: its processes, the recovery daemon and the server are killed at random, and no money is lost.

TXPOOL_CRASH_SECONDS says for how long (12, and half of it over a log on a server), TXPOOL_CRASH_SEED replays a schedule
of kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash import eventually as places
from tests.crash.bank import Bank
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.site import CrashSite
from tests.support.mysql import MySQLServer
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres
from txpool.xid import PREFIX

SECONDS = float(os.environ.get("TXPOOL_CRASH_SECONDS", "12"))
PROCESSES, CLERKS = 2, 4
#: Who is killed, and how often beside the others.
VICTIMS = {"process": 6, "daemon": 2, "server": 2}


class Staff:
    """The bank's processes and its recovery daemon: killed, and replaced at once."""

    def __init__(self, world: CrashSite) -> None:
        self._world = world
        self._hired = 0
        self._errors = (world.folder / "errors").open("ab")
        self._daemon_errors = (world.folder / "daemon").open("ab")
        self._processes = [self._process() for _ in range(PROCESSES)]
        self._daemon = self._new_daemon()

    def _process(self) -> subprocess.Popen[bytes]:
        self._hired += 1
        kind = "tasks" if self._hired % 2 else "threads"
        arguments = ["tests.crash.bank", str(self._world.folder), f"{SEED}.{self._hired}", str(CLERKS), kind]
        return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stderr=self._errors)

    def _new_daemon(self) -> subprocess.Popen[bytes]:
        arguments = ["recovery", "run", "--conf", str(self._world.conf)]
        return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stderr=self._daemon_errors)

    def kill_process(self, number: int) -> None:
        self._kill(self._processes[number])
        self._processes[number] = self._process()

    def kill_daemon(self) -> None:
        self._kill(self._daemon)
        self._daemon = self._new_daemon()

    def close(self) -> None:
        for process in (*self._processes, self._daemon):
            process.kill()
            process.wait()
        self._errors.close()
        self._daemon_errors.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"it had ended by itself: {self.errors()}"

    def errors(self) -> str:
        """What the bank's processes have died of, other than of us."""
        text = (self._world.folder / "errors").read_text()
        return text[text.find("Traceback") :] if "Traceback" in text else ""


@pytest.fixture(params=["sqlite", "sql", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(
    victim: EmbeddedPostgres,
    log_server: EmbeddedPostgres | MySQLServer,
    tmp_path: Path,
    store: str,
    eventually: Eventually,
) -> Iterator[CrashSite]:
    victim.start()
    log_server.start()
    world = CrashSite(tmp_path, victim, store=store, log_server=log_server, immediate_cleanup=False)
    eventually.in_the(places.world(world))
    yield world
    world.close()


@pytest.mark.costly
def test_no_money_is_made_or_lost(world: CrashSite, store: str, evidence: Evidence) -> None:
    print(f"seed {SEED}")
    bank = Bank(world)
    kills = _under_fire(world, bank, Staff(world), SECONDS if store == "sqlite" else SECONDS / 2)
    world.server.start()
    world.wait_for_sessions()
    # All processes are dead: one scan ends everything, and the next one drops the marks of what was rolled back.
    report, again = world.scan(), world.scan()
    assert report.errors == again.errors == {}
    assert not report.left_alone
    assert again.committed == again.rolled_back == ()
    counts, judged = bank.audit(), bank.judge()
    daemon_says = (world.folder / "daemon").read_text().splitlines()
    world.assert_nothing_is_left()
    recovered = sum(f" {how} {PREFIX}" in line for line in daemon_says for how in ("committed", "rolled back"))
    print(f"kills: {dict(kills)}; transfers: {dict(counts)}; lists read: {judged}")
    print(f"the daemon has ended {recovered} branches; the scan at the end: {report}")
    assert counts["committed"] > 0
    assert judged > 0
    evidence.add(Count.TRANSFERS, counts.total())
    evidence.add(Count.BANK_KILLS, kills.total())
    evidence.add(Count.RECOVERIES, recovered + len(report.committed) + len(report.rolled_back))


def _under_fire(world: CrashSite, bank: Bank, staff: Staff, seconds: float) -> Counter[str]:
    """Kill and replace, on a schedule that the seed gives; nobody is killed before the bank has done anything since."""
    schedule = random.Random(SEED)
    acts: dict[str, Callable[[], object]] = {
        "process": lambda: staff.kill_process(schedule.randrange(PROCESSES)),
        "daemon": staff.kill_daemon,
        "server": lambda: world.server.restart("immediate"),
    }
    kills: Counter[str] = Counter()
    try:
        bank.told.wait_for(1)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, schedule.uniform(0.5, 2.5)))
            (victim,) = schedule.choices([*VICTIMS], [*VICTIMS.values()])
            acts[victim]()
            kills[victim] += 1
            bank.told.wait_for(1)
    finally:
        staff.close()
    assert staff.errors() == ""
    return kills
