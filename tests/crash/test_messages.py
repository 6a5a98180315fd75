"""Consumers, recovery and the broker are killed: each message in is one row and one message out.

By default 100 messages and 5 kills, chosen by a seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1, 10,000 and 100.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

import txpool
from recovery.manager import RecoveryManager
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED
from tests.support import preloaded
from tests.support.kafka.broker import Broker
from tests.support.kafka.fixtures import kafka, topics, write_site
from tests.support.waiting import until
from txpool.datasource import registry

__all__ = ["kafka", "topics"]
pytestmark = pytest.mark.slow

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
MESSAGES, KILLS = (10_000, 100) if FULL else (100, 5)
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
    def __init__(self, folder: Path, broker: Killable, topics: tuple[str, str], chance: random.Random) -> None:
        self.folder, self.broker, self.topics, self.chance = folder, broker, topics, chance
        self.running: dict[str, preloaded.Process] = {}

    def start(self, role: str, failpoints: str = "") -> None:
        source = CONSUMER if role == "consumer" else RECOVERY
        environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
        self.running[role] = preloaded.start("-c", source, cwd=self.folder, env=environment)

    def kill(self, role: str) -> None:
        process = self.running.pop(role)
        process.kill()
        print(f"{role}: {process.communicate(timeout=60)[1][-6000:]}")

    def done(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "orders.db", timeout=60)) as connection:
            return [text for (text,) in connection.execute("select body from done")]

    def strike(self, least: int) -> None:
        """Kill one of them, once so many messages are done."""
        victim = self.chance.choice(["consumer", "consumer", "point", "recovery", "broker"])
        until(lambda: len(self.done()) >= least, 300, f"stuck before {least}")
        print(f"after {len(self.done())}: {victim}", flush=True)
        if victim == "point":
            self.kill("consumer")
            self.start("consumer", f"{self.chance.choice(POINTS)}=kill@{self.chance.randint(1, 3)}")
            until(lambda: self.running["consumer"].poll() is not None or len(self.done()) == MESSAGES, 300)
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


@pytest.fixture
def work(
    kafka: Broker, topics: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> Iterator[Work]:
    monkeypatch.chdir(tmp_path)
    write_site(tmp_path, kafka, topics, more="parking.after = 1000\n")
    txpool.configure("txpool.properties")
    source = txpool.DataSource.from_properties("orders.properties")
    with closing(sqlite3.connect("orders.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table done (body text)")
    source.xids_table().create()  # type: ignore[attr-defined]
    source.close()
    eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
    print(f"seed {SEED}")
    made = Work(tmp_path, kafka, topics, random.Random(SEED))
    yield made
    for role in [*made.running]:
        made.kill(role)
    for each in registry.opened():
        each.close()
    txpool.configure()


def test_each_message_is_one_row_and_one_message(work: Work, kafka: Broker) -> None:
    inward = txpool.session("in.properties")
    with txpool.transaction():
        for number in range(MESSAGES):
            inward.send(str(number))
    inward.close()  # else it would try to connect while there is no broker, and kafka-python leaves those sockets
    for role in ("consumer", "recovery"):
        work.start(role)
    for number in range(KILLS):
        work.strike(number * MESSAGES // KILLS + 1)
    until(lambda: len(work.done()) >= MESSAGES, 300, "not all were done")
    work.kill("consumer")
    work.kill("recovery")
    with closing(RecoveryManager("recovery.properties")) as manager:
        reports = [manager.scan()]
        deadline = time.monotonic() + 120
        while reports[-1].left_alone or reports[-1].unreachable:
            assert time.monotonic() < deadline, reports[-1]
            reports.append(manager.scan())
    assert [each for report in reports for each in report.heuristics] == []
    assert [each for report in reports for each in report.alarms] == []
    expected = Counter(map(str, range(MESSAGES)))
    assert Counter(work.done()) == expected
    with txpool.transaction():
        txpool.session("out.properties").send("end")
    *sent, end = kafka.told(work.topics[1], MESSAGES + 1)
    assert end == "end"
    assert Counter(sent) == expected
