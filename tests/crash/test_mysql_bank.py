"""The bank over PostgreSQL, MariaDB, MySQL and marked databases: its processes and recovery are killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.bank import Told
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED
from tests.crash.mysql_bank import ACCOUNTS, OPENING, PREPARING
from tests.crash.mysql_site import FILE, POSTGRESQL, Site
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

SECONDS = float(os.environ.get("TXPOOL_CRASH_SECONDS", "6"))
PROCESSES, THREADS = 2, 2


class Bank(Site):
    """The bank as its auditor sees it: past txpool."""

    immediate_cleanup = "false"

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer, mysql8: MySQLServer) -> None:
        super().__init__(folder, databases, mariadb, mysql8)
        self.told = Told(folder)
        rows = ", ".join(f"({number}, {OPENING})" for number in range(1, ACCOUNTS + 1))
        made = ["create table account (id int primary key, balance int not null)", f"insert into account values {rows}"]
        big = "alter table t modify id bigint"
        for statement in (*made, "alter table t alter id type bigint"):
            databases.execute("one", statement)
        for server in self.servers.values():
            server.execute(*made, big, database="one")
            server.execute(big, database="two")

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *map(str, arguments)], cwd=self.folder, env=self.environment)

    def open(self, number: int) -> subprocess.Popen[bytes]:
        return self.start("-m", "tests.crash.mysql_bank", f"{SEED}.{number}", THREADS)

    def audit(self) -> Counter[str]:
        """No money is made or lost, no transfer is torn, and everybody was told the truth; how often what was told."""
        query = "select sum(balance) from account"
        held = {name: self.rows(name) for name in (*PREPARING, FILE, "maria-ledger")}
        money = [int(self.databases.rows("one", query)[0][0])]
        money += [int(server.execute(query, database="one")[0][0]) for server in self.servers.values()]
        assert sum(money) == len(PREPARING) * ACCOUNTS * OPENING
        found = Counter(number for name in PREPARING for number in held[name])
        assert set(found.values()) <= {2}, "torn"
        assert {*held[FILE], *held["maria-ledger"]} <= found.keys(), "a mark without its transfer"
        said = {int(name): word for name, word in (line.split() for line in self.told.lines())}
        lies = {
            number: word for number, word in said.items() if word != "doubt" and (word == "yes") != (number in found)
        }
        assert lies == {}
        return Counter(said.values())


@pytest.fixture
def bank(
    tmp_path: Path,
    databases: Databases,
    mariadb: MySQLServer,
    mysql8: MySQLServer,
    require_driver: RequireDriver,
    eventually: Eventually,
) -> Bank:
    require_driver("mysqlclient")
    bank = Bank(tmp_path, databases, mariadb, mysql8)
    eventually.in_the(places.folder_site(bank, databases, [mariadb, mysql8]))
    return bank


@pytest.mark.costly
def test_no_money_is_made_or_lost(bank: Bank) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    processes = [bank.open(number) for number in range(PROCESSES)]
    processes.append(bank.start("-m", "recovery", "run", "--conf", "recovery.properties"))
    kills = 0
    try:
        until = time.monotonic() + SECONDS
        while kills < PROCESSES or time.monotonic() < until:
            bank.told.wait_for(10)
            time.sleep(chance.uniform(0, 0.5))
            kills += 1
            victim = chance.randrange(PROCESSES)
            _kill(processes[victim])
            processes[victim] = bank.open(PROCESSES + kills)
    finally:
        for process in processes:
            _kill(process)
    first, again = bank.scan(), bank.scan()
    assert (first.returncode, again.returncode) == (0, 0), first.stdout + first.stderr + again.stdout + again.stderr
    assert "heuristic" not in first.stdout.lower(), first.stdout
    counts = bank.audit()
    assert (bank.prepared(), bank.marks(), bank.kept()) == ([], [], {})
    assert counts["yes"], counts
    print(f"{kills} kills: {dict(counts)}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.costly
def test_a_bank_that_closes_leaves_nothing_to_recovery(bank: Bank) -> None:
    """Its incarnation is not fenced: it has deleted its own rows, pointers and decisions."""
    done = bank.run("-m", "tests.crash.mysql_bank", str(SEED), str(THREADS), "25")
    assert done.returncode == 0, done.stderr
    assert bank.audit()["yes"] == THREADS * 25
    assert (bank.prepared(), bank.marks(), bank.kept()) == ([], [], {})
    assert bank.rows(POSTGRESQL)
