"""Senders, relays and receivers are killed: no message is lost, none is applied twice, each key keeps its order.

By default 300 messages and 4 kills, chosen by a seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1, 100,000 and 20.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.support import preloaded
from tests.support.recovery_site import Site
from tests.support.waiting import until

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
MESSAGES, KILLS = (100_000, 20) if FULL else (300, 4)
KEYS = 8

_BEGIN = """
import sys, time, psycopg, txpool
dsn, messages, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
txpool.configure("txpool.properties")
outbox = txpool.Outbox("one.properties")
plain = psycopg.connect(dsn, autocommit=True)
"""
#: Sends numbers in order, each with a row in another database; it goes on where the last one has ended.
SENDER = (
    _BEGIN
    + """
(number,) = plain.execute("select coalesce(max(number), -1) + 1 from sent").fetchone()
while number < messages:
    with txpool.transaction(), txpool.connect("two.properties") as two:
        for each in range(number, min(number + 5, messages)):
            two.execute("insert into sent values (%s)", [each])
            outbox.send(str(each), key=f"k{each % keys}")
    number = each + 1
    while outbox.state().waiting > 300:
        time.sleep(0.02)
"""
)
#: Half of the keys are applied within the delivery's own transaction; the others go into a queue outside of it.
RELAY = (
    _BEGIN
    + """
def deliver(message):
    number = int(message.payload)
    if number % keys < keys // 2:
        with txpool.connect("two.properties") as two:
            two.execute("insert into applied (number) values (%s)", [number])
    else:
        plain.execute("insert into queue (id, number) values (%s, %s)", [message.id, number])
outbox.relay(deliver).run()
"""
)
#: Applies what is in the queue, in a transaction of two databases, and deletes it from the queue behind that.
RECEIVER = (
    _BEGIN
    + """
while True:
    rows = plain.execute("select place, id, number from queue order by place limit 10").fetchall()
    with txpool.transaction(), txpool.connect("two.properties") as two, txpool.connect("one.properties") as one:
        for _, id, number in rows:
            if txpool.once(id, "two.properties"):
                two.execute("insert into applied (number) values (%s)", [number])
                one.execute("insert into received values (%s)", [number])
    plain.execute("delete from queue where place = any (%s)", [[place for place, _, _ in rows]])
    if not rows:
        time.sleep(0.02)
"""
)
ROLES = {"sender": SENDER, "relay": RELAY, "second relay": RELAY, "receiver": RECEIVER}


class Work:
    """The four processes over two databases."""

    def __init__(self, site: Site) -> None:
        self.site = site
        for name in ("one", "two"):
            path = site.folder / f"{name}.properties"
            path.write_text(path.read_text() + "outbox.poll = 20ms\noutbox.attempts = 1000\n")
        site.databases.execute("one", "create table received (number int)")
        site.databases.execute("two", "create table sent (number int)")
        site.databases.execute("two", "create table applied (number int, place bigserial)")
        site.databases.execute("two", "create table queue (id text, number int, place bigserial)")
        self.running: dict[str, preloaded.Process] = {}

    def start(self, role: str, source: str = "", failpoints: str = "") -> preloaded.Process:
        arguments = [self.site.databases.dsn("two"), str(MESSAGES), str(KEYS)]
        environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
        process = preloaded.start("-c", source or ROLES[role], *arguments, cwd=self.site.folder, env=environment)
        self.running[role] = process
        return process

    def kill(self, role: str) -> None:
        self.running[role].kill()
        print(f"{role}: {self.ended(role)}")

    def ended(self, role: str) -> tuple[int, str, str]:
        """How a process has ended, and what it has said."""
        process = self.running.pop(role)
        output, errors = process.communicate(timeout=600)
        return process.wait(), output, errors

    def recover(self) -> None:
        with closing(self.site.manager()) as manager:
            manager.scan()

    def applied(self) -> list[int]:
        return [number for (number,) in self.site.databases.rows("two", "select number from applied order by place")]

    def reach(self, count: int) -> None:
        """Wait until so many messages are applied."""

        def reached() -> bool:
            for role, process in self.running.items():
                ended = process.poll()
                assert ended is None or (role, ended) == ("sender", 0), f"{role}: {process.communicate()[1]}"
            return int(self.site.databases.rows("two", "select count(*) from applied")[0][0]) >= count

        until(reached, 7200, f"{count} messages are not applied")


@pytest.fixture
def work(tmp_path: Path, databases: Any, eventually: Eventually) -> Iterator[Work]:
    site = Site(tmp_path, databases)
    eventually.in_the(places.recovery_site(site))
    work = Work(site)
    preloaded.run("-m", "txpool", "outbox", "init", "one.properties", cwd=tmp_path, env=os.environ).check_returncode()
    try:
        yield work
    finally:
        for role in [*work.running]:
            work.kill(role)


@pytest.mark.costly
def test_nothing_is_lost_and_nothing_is_applied_twice(work: Work, evidence: Evidence) -> None:
    chance = random.Random(SEED)
    victims = [each for _ in range(KILLS) for each in chance.sample([*ROLES], len(ROLES))][:KILLS]
    for role in ROLES:
        work.start(role)
    for number, victim in enumerate(victims, 1):
        work.reach(MESSAGES * number // (KILLS + 1))
        work.kill(victim)
        work.recover()
        work.start(victim)
    work.reach(MESSAGES)
    assert work.ended("sender")[0] == 0
    until(lambda: not work.site.databases.rows("two", "select from queue limit 1"), what="the queue is not empty")
    for role in [*work.running]:
        work.kill(role)
    work.recover()
    applied = work.applied()
    sent = [number for (number,) in work.site.databases.rows("two", "select number from sent")]
    lost, twice = set(range(MESSAGES)) - set(applied), [each for each, times in Counter(applied).items() if times > 1]
    print(f"{len(sent)} sent, {len(applied)} applied, {len(lost)} lost, {len(twice)} applied twice; {victims}")
    assert (lost, twice, sorted(sent)) == (set(), [], [*range(MESSAGES)])
    for key in range(KEYS):
        of_key = [each for each in applied if each % KEYS == key]
        assert of_key == sorted(of_key), f"key {key}"
    received = {number for (number,) in work.site.databases.rows("one", "select number from received")}
    assert received == {each for each in range(MESSAGES) if each % KEYS >= KEYS // 2}
    assert not work.site.databases.rows("one", "select from txpool_spark.outbox limit 1")
    assert work.site.databases.prepared() == []
    evidence.add(Count.KILLS, KILLS)


SEND_FOUR = _BEGIN + "with txpool.transaction():\n    for each in range(4): outbox.send(str(each), key='k')\n"
APPLY_ALL = (
    _BEGIN
    + """
def deliver(message):
    with txpool.connect("two.properties") as two:
        two.execute("insert into applied (number) values (%s)", [int(message.payload)])
print(outbox.relay(deliver).deliver_all())
"""
)
#: The points, and how many messages are delivered there. The third transaction is the first delivery: it comes behind
#: those that look for messages and count the delivery, which have one database.
POINTS = {
    "coordinator.begin@3": 0,
    "coordinator.preparing": 0,
    "coordinator.prepared": 0,
    "log.record": 0,
    "log.recorded": 1,
    "coordinator.decided": 1,
    "coordinator.committing": 1,
    "coordinator.one-committed": 1,
    "coordinator.committed": 1,
}


@pytest.mark.costly
def test_a_relay_is_killed_at_each_point_of_a_delivery(work: Work, evidence: Evidence) -> None:
    """The next relay ends first what that has left prepared: so the order of the key stays."""
    for point, applied in POINTS.items():
        name, _, nth = point.partition("@")
        with psycopg.connect(work.site.databases.dsn("two"), autocommit=True) as connection:
            connection.execute("truncate applied")
        work.start("sender", SEND_FOUR)
        assert work.ended("sender")[0] == 0
        work.start("relay", APPLY_ALL, f"{name}=kill@{nth or 1}")
        status, _, errors = work.ended("relay")
        assert status == -9, f"{point} was not reached: {errors}"
        work.start("relay", APPLY_ALL)
        _, output, errors = work.ended("relay")
        assert work.applied() == [0, 1, 2, 3], f"{point}: {errors}"
        assert int(output) == 4 - applied, point
        assert work.site.databases.prepared() == []
    evidence.add(Count.KILLS, len(POINTS))
