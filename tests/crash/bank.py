"""A bank with accounts in three databases, transferring until it is killed.

It runs as `python -m tests.crash.bank FOLDER SEED CLERKS threads|tasks`. Each transfer takes from an account in one
database and gives to one in another; some also stand in a marked one. Its clerks are threads, or tasks of one event
loop. What the callers were told goes into `FOLDER/outcomes`.
Each account has a list of its transfers, and what was read and told of those goes into `FOLDER/history`, for the judge.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.crash.site import DONE, PREPARING, SERVED, UNDONE, UNKNOWN, CrashSite, outcome_of
from tests.judge import history
from tests.judge.atomicity import torn
from tests.judge.consistency import Level, anomalies
from tests.judge.history import Key
from tests.support.waiting import until
from txpool import failpoints
from txpool.aio import aconnect
from txpool.datasource import connect
from txpool.errors import LogError
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure
from txpool.tm.transaction import Transaction

ACCOUNTS = 30
OPENING = 1_000
_TABLE = "create table transfer (id text primary key, names text not null)"
#: Where a transfer lingers now and then, so that recovery meets it there.
_LINGERS = ("coordinator.prepared", "coordinator.decided")
#: Of transfers by tasks, how many are cancelled.
_CANCELLED = 0.1
#: What a transfer takes part in beside two databases: mostly nothing.
_MARKS: tuple[list[str], ...] = ([], [], [], [], [], [], ["ledger"], ["book"])


class Told:
    """What the callers were told of their transfers, a line each."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "outcomes"

    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def wait_for(self, more: int) -> None:
        """Until so many more transfers have ended: on a busy machine a process takes its time to begin."""
        count = len(self.lines()) + more
        until(lambda: len(self.lines()) >= count, 120, "the bank does nothing")


class Bank:
    """The bank in a world, as its auditor sees it: past txpool."""

    def __init__(self, world: CrashSite) -> None:
        self._world = world
        self.told = Told(world.folder)
        for name in SERVED:
            world.session(name).execute(_TABLE)
        for name in PREPARING:
            session = world.session(name)
            session.execute("create table account (id int primary key, balance int, transfers text default '')")
            session.execute(f"insert into account select n, {OPENING} from generate_series(1, {ACCOUNTS}) n")
            world.describe(name, more="driver.options = -c lock_timeout=1000")
        with closing(sqlite3.connect(world.folder / "ledger.db")) as ledger:
            ledger.execute(_TABLE)

    def balance(self) -> int:
        """All the money there is."""
        query = "select sum(balance) from account"
        return sum((self._world.session(name).execute(query).fetchone() or (0,))[0] for name in PREPARING)

    def transfers(self) -> dict[str, tuple[set[str], set[str]]]:
        """By transfer, the databases that hold it, and those that ought to, where any does."""
        query = "select id, names from transfer"
        found: dict[str, tuple[set[str], set[str]]] = {}
        with closing(sqlite3.connect(self._world.folder / "ledger.db")) as ledger:
            held = {"ledger": ledger.execute(query).fetchall()}
        held |= {name: self._world.session(name).execute(query).fetchall() for name in SERVED}
        for name, rows in held.items():
            for number, names in rows:
                found.setdefault(number, (set(), set(names.split("+"))))[0].add(name)
        return found

    def outcomes(self) -> dict[str, str]:
        """What the callers were told, by transfer; those that were killed first were told nothing."""
        return dict(line.split(" ", 1) for line in self.told.lines())

    def lists(self) -> dict[Key, list[str]]:
        """The transfers of each account, in their order."""
        query = "select id, transfers from account"
        return {
            Key(name, str(account)): transfers.split()
            for name in PREPARING
            for account, transfers in self._world.session(name).execute(query)
        }

    def judge(self) -> int:
        """What is no part of txpool nor of its tests finds each transfer atomic, and what was read consistent."""
        with (self._world.folder / "history").open() as lines:
            attempts = history.attempts(lines)
        lists = self.lists()
        assert [*torn(attempts, lists)] == []
        for name in PREPARING:
            assert [*anomalies(attempts, lists, name, Level.READ_COMMITTED)] == []
        return sum(len(attempt.reads) for attempt in attempts.values())

    def audit(self) -> Counter[str]:
        """No money is made or lost, no transfer is torn, and everybody was told the truth; how often what was told."""
        transfers, said = self.transfers(), self.outcomes()
        torn = {number: held for number, held in transfers.items() if held[0] != held[1]}
        assert torn == {}, f"torn: {torn}"
        assert self.balance() == len(PREPARING) * ACCOUNTS * OPENING
        lies = {number: word for number, word in said.items() if word == "committed" and number not in transfers}
        lies |= {number: word for number, word in said.items() if word == "rolled back" and number in transfers}
        assert lies == {}
        assert set(said.values()) <= {"committed", "rolled back", "in doubt"}
        return Counter(said.values()) + Counter({"unreported": len(transfers.keys() - said.keys())})


def main(folder: Path, seed: str, number: int, kind: str) -> None:
    os.chdir(folder)
    _open()
    chance = random.Random(seed)
    for point in _LINGERS:
        _arm(point, chance)
    if kind == "tasks":
        asyncio.run(_transfer_in_tasks(seed, number))
        return
    clerks = [threading.Thread(target=_transfer, args=(seed, each)) for each in range(number)]
    for clerk in clerks:
        clerk.start()
    for clerk in clerks:
        clerk.join()


def _open() -> None:
    """Open the decision log, as soon as the server that may keep it is there."""
    while True:
        try:
            configure("txpool.properties")
        except LogError:
            time.sleep(0.05)
        else:
            return


def _arm(point: str, chance: random.Random) -> None:
    """Let one of the next transfers linger there, and then another."""

    def linger() -> None:
        time.sleep(chance.uniform(0, 1))
        _arm(point, chance)

    failpoints.arm(point, linger, nth=chance.randint(1, 12))


def _transfer(seed: str, clerk: int) -> None:
    """Transfer for ever."""
    chance = random.Random(f"{seed} {clerk}")
    with open("outcomes", "ab", buffering=0) as outcomes, open("history", "ab", buffering=0) as lines:
        number = 0
        while True:
            number += 1
            transfer = Transfer(f"{os.getpid()}.{clerk}.{number}", chance)
            lines.write(history.begins(transfer.name, transfer.places).encode())
            word = outcome_of(transfer.run)
            lines.write(history.ends(transfer.name, word, transfer.reads).encode())
            outcomes.write(f"{transfer.name} {word}\n".encode())


async def _transfer_in_tasks(seed: str, tasks: int) -> None:
    await asyncio.gather(*(_transfer_in_task(seed, clerk) for clerk in range(tasks)))


async def _transfer_in_task(seed: str, clerk: int) -> None:
    """As `_transfer`; now and then somebody cancels the task of a transfer, and sees how it ended."""
    chance = random.Random(f"{seed} {clerk}")
    with open("outcomes", "ab", buffering=0) as outcomes, open("history", "ab", buffering=0) as lines:
        number = 0
        while True:
            number += 1
            transfer = Transfer(f"{os.getpid()}.{clerk}.{number}", chance)
            lines.write(history.begins(transfer.name, transfer.places).encode())
            task = asyncio.ensure_future(transfer.run_in_task())
            if chance.random() < _CANCELLED:
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.05), task.cancel)
            await asyncio.wait([task])
            word = transfer.word_if_cancelled if task.cancelled() else outcome_of(task.result)
            lines.write(history.ends(transfer.name, word, transfer.reads).encode())
            outcomes.write(f"{transfer.name} {word}\n".encode())


class Transfer:
    """From an account in one database to one in another."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        # In one order everywhere, so that two transfers never wait for each other.
        self.places = sorted((database, str(chance.randint(1, ACCOUNTS))) for database in chance.sample(PREPARING, 2))
        #: The lists of both accounts, as this transfer has seen them.
        self.reads: list[tuple[str, str, list[str]]] = []
        self._amount, self._mark = chance.randint(1, 50), chance.choice(_MARKS)
        self._transaction: Transaction | None = None

    def run(self) -> None:
        self.reads.clear()
        with transaction():
            for database, account, statement in self._changes():
                cursor = connect(f"{database}.properties").cursor()
                cursor.execute(statement)
                (seen,) = cursor.fetchone()
                self.reads.append((database, account, seen.split()))
            for database, statement in self._records():
                connect(f"{database}.properties").cursor().execute(statement)

    async def run_in_task(self) -> None:
        self.reads.clear()
        async with transaction() as self._transaction:
            for database, account, statement in self._changes():
                cursor = await (await aconnect(f"{database}.properties")).execute(statement)
                (seen,) = await cursor.fetchone()
                self.reads.append((database, account, seen.split()))
            for database, statement in self._records():
                await (await aconnect(f"{database}.properties")).execute(statement)

    @property
    def word_if_cancelled(self) -> str:
        """How it has ended: in a task that was cancelled, the status tells it."""
        if self._transaction is None:
            return UNDONE
        return {Status.COMMITTED: DONE, Status.ROLLED_BACK: UNDONE, Status.IN_DOUBT: UNKNOWN}[self._transaction.status]

    def _changes(self) -> Iterator[tuple[str, str, str]]:
        """The statements that change the accounts, each with its database and account."""
        for (database, account), change in zip(self.places, (self._amount, -self._amount), strict=True):
            yield (
                database,
                account,
                f"update account set balance = balance + {change}, transfers = transfers || ' {self.name}' "
                f"where id = {account} returning transfers",
            )

    def _records(self) -> Iterator[tuple[str, str]]:
        """Those that record it, each with its database."""
        names = [database for database, _ in self.places] + self._mark
        for database in names:
            yield database, f"insert into transfer values ('{self.name}', '{'+'.join(names)}')"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
