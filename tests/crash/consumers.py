"""A consumer that writes a row and sends a message for each that it gets, recovery and a broker: all are killed.

By default 100 messages and 5 kills, chosen by a seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1, 10,000 and 100.
With TXPOOL_CRASH_SECONDS nobody is killed any more after so many seconds, and all messages are done all the same.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import txpool
from recovery.manager import RecoveryManager
from recovery.scan.report import ScanReport
from tests.crash.evidence import SEED
from tests.support import preloaded
from tests.support.message_site import configured
from tests.support.waiting import until

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
MESSAGES, KILLS = (10_000, 100) if FULL else (100, 5)
EXPECTED = Counter(map(str, range(MESSAGES)))
#: For how many seconds they are killed at most.
SECONDS = float(os.environ.get("TXPOOL_CRASH_SECONDS", "inf"))
#: For how many seconds nothing may be done: a broker, and Spark, take long to start on a busy machine.
PATIENCE = 600
POINTS = (
    "coordinator.prepared",
    "marked.commit",
    "marked.committed",
    "coordinator.committing",
    "coordinator.committed",
    "coordinator.preparing",
)

CONSUMER = """
import txpool
txpool.configure("txpool.properties")
out = txpool.session("out.properties")

@txpool.consumer("in.properties", max_messages=10, poll=0.2)
def ship(messages):
    with txpool.connect("orders.properties") as orders:
        for each in messages:
            orders.execute("insert into done values (?)", [each.text])
            out.send(each.body)

ship.run()
"""
#: What it says goes into a file: a pipe that nobody reads would stop it, once that is full.
LOGGED = """
import os
os.dup2(os.open({file!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 2)
"""
RECOVERY = """
import time
from recovery.manager import RecoveryManager
manager = RecoveryManager("recovery.properties")
while True:
    manager.scan()
    time.sleep(0.2)
"""


class Killable(Protocol):
    def kill(self) -> None: ...

    def start(self) -> None: ...


class Work:
    """The consumer and recovery of the working folder, in processes of their own."""

    #: Who is killed: each as often as it stands here. A point is the consumer's.
    victims = ("consumer", "consumer", "point", "recovery", "broker")
    #: How many rows there will be.
    count = MESSAGES
    kills = KILLS

    def __init__(self, folder: Path, broker: Killable, chance: random.Random) -> None:
        self.folder, self.broker, self.chance = folder, broker, chance
        self.running: dict[str, Any] = {}

    def start(self, role: str, failpoints: str = "") -> None:
        source = CONSUMER if role == "consumer" else RECOVERY
        environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
        logged = LOGGED.format(file=f"{role}.err")
        self.running[role] = preloaded.start("-c", logged + source, cwd=self.folder, env=environment)

    def kill(self, role: str) -> None:
        process = self.running.pop(role)
        process.kill()
        said = process.communicate(timeout=600)[1]
        log = self.folder / f"{role}.err"
        if log.exists():
            said = log.read_text()
            log.unlink()
        print(f"{role}: {said[-6000:]}")

    def done(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "orders.db", timeout=60)) as connection:
            return [text for (text,) in connection.execute("select body from done")]

    def reach(self, least: int) -> None:
        """Wait until so many are done, as long as it goes on."""
        while (count := len(self.done())) < least:
            until(lambda count=count: len(self.done()) > count, PATIENCE, f"stuck at {count}")  # type: ignore[misc]

    def strike(self, least: int) -> None:
        """Kill one of them, once so many messages are done."""
        victim = self.chance.choice(self.victims)
        self.reach(least)
        print(f"after {len(self.done())}: {victim}", flush=True)
        if victim == "point":
            self.arm(self.chance.choice(POINTS), self.chance.randint(1, 3))
            until(lambda: self.running["consumer"].poll() is not None or len(self.done()) == self.count, PATIENCE)
            self.kill("consumer")
            self.start("consumer")
            return
        time.sleep(self.chance.random() / 20)  # any moment is right
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        else:
            self.kill(victim)
            self.start(victim)

    def arm(self, point: str, nth: int) -> None:
        """Let the consumer be killed as it reaches a point for the nth time."""
        self.kill("consumer")
        self.start("consumer", f"{point}=kill@{nth}")

    def feed(self) -> None:
        """Send what is to be received."""
        inward = txpool.session("in.properties")
        with txpool.transaction():
            for number in range(self.count):
                inward.send(str(number))
        inward.close()  # else it would try to connect while there is no broker, and kafka-python leaves those sockets

    def survive(self) -> list[ScanReport]:
        """Let them do all messages, and kill each now and then; recovery's reports once all have ended."""
        self.feed()
        for role in ("consumer", "recovery"):
            self.start(role)
        struck, end = 0, time.monotonic() + SECONDS
        while struck < self.kills and time.monotonic() < end:
            self.strike(struck * self.count // self.kills + 1)
            struck += 1
        print(f"{struck} kills", flush=True)
        self.reach(self.count)
        self.kill("consumer")
        self.kill("recovery")
        with closing(RecoveryManager("recovery.properties")) as manager:
            reports = [manager.scan()]
            deadline = time.monotonic() + 600
            while reports[-1].left_alone or reports[-1].unreachable:
                assert time.monotonic() < deadline, reports[-1]
                reports.append(manager.scan())
        assert [each for report in reports for each in report.heuristics] == []
        assert Counter(self.done()) == Counter(map(str, range(self.count)))
        return reports


@contextmanager
def at_work(folder: Path, broker: Killable, make: Callable[..., Work] = Work) -> Iterator[Work]:
    """In a working folder with the files of a site."""
    print(f"seed {SEED}")
    with configured(folder):
        made = make(folder, broker, random.Random(SEED))
        try:
            yield made
        finally:
            for role in [*made.running]:
                made.kill(role)
