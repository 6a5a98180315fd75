"""Consumers of a queue at once, each stopped or killed at any step: who can be done is done, and others are parked.

By default one round with one kind of database; with TXPOOL_CRASH_FULL=1, thirty with each. TXPOOL_CRASH_SEED replays
a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from tests.crash.evidence import SEED, Count, Evidence
from tests.integration.messages.test_queue import open_tries
from tests.integration.outbox.conftest import Place, place
from tests.support import preloaded
from tests.support.sampling import FULL
from tests.support.waiting import until
from txpool.messages import MessageSession
from txpool.resources.messages.tables import tables_of

__all__ = ["place"]

ROUNDS = 30 if FULL else 1
CONSUMERS, AFTER = 3, 4
#: By kind, how many messages; those of the last three kinds can never be done.
KINDS = {"good": 6, "outage": 2, "raises": 2, "at-commit": 1, "kills": 1}
GOOD = ("good", "outage")

CONSUMER = """
import os, random, signal, sys, time
import txpool
from txpool.messages import consumer
from txpool.resources.messages.tables import MessageTables
mark, chance, dies = sys.argv[1], random.Random(sys.argv[2]), int(sys.argv[3])
module = sys.modules["txpool.messages.consumer"]
module._LONGEST_WAIT = 0.02
one, batch = module.Consumer._one, module.Consumer._batch
alone, steps = False, 0

def step():
    global steps
    steps += 1
    if steps == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if chance.random() < 0.1:
        time.sleep(chance.random() / 20)

execute = MessageTables._execute

def stepping(*given):
    step()
    try:
        return execute(*given)
    finally:
        step()

MessageTables._execute = stepping

def telling(work, is_one):
    def told(*given):
        global alone
        alone = is_one
        return work(*given)
    return told

module.Consumer._one, module.Consumer._batch = telling(one, True), telling(batch, False)

def fails():
    raise ValueError

@consumer("in.properties", max_messages=3, poll=0.02)
def work(messages):
    for each in messages:
        if alone:
            with open("tries", "a") as file:
                file.write(each.text + chr(10))
        kind = each.text.partition(" ")[0]
        step()
        if kind == "raises":
            fails()
        elif kind == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "at-commit":
            txpool.current().before_completion(fails)
        elif kind == "outage" and chance.random() < 0.7:
            raise txpool.PoolTimeout("no connection is free")
        with txpool.connect("orders.properties") as orders:
            orders.cursor().execute(f"insert into done values ({mark})", [each.text])
    step()

work.run(lambda: os.path.exists("stop"))
"""


class Round:
    """One queue of messages, and those that consume it."""

    def __init__(self, place: Place, folder: Path, seed: str) -> None:
        self.place, self.folder, self.seed = place, folder, seed
        self.chance = random.Random(seed)
        self.messages = [f"{kind} {number}" for kind, count in KINDS.items() for number in range(count)]
        self.chance.shuffle(self.messages)
        #: At which steps consumers are killed, whatever they do.
        self.kills = [self.chance.randrange(1, 150) for _ in range(self.chance.choice((0, AFTER - 1)))]
        self.strikes = len(self.kills)
        self.running: list[preloaded.Process] = []
        self.deaths = 0
        lines = "".join(f"{key.replace('_', '.')} = {value}\n" for key, value in place._options["orders"].items())
        (folder / "orders.properties").write_text(f"name = orders\n{lines}")
        (folder / "orders.properties").chmod(0o600)
        (folder / "in.properties").write_text(
            "driver = sql-queue\nqueue = in\nparking = parked\nqueue.datasource = orders.properties\n"
            f"parking.after = {AFTER}\nqueue.ordered = {self.chance.choice(('true', 'false'))}\n"
        )
        place.sql("orders", "create table done (message varchar(100))")
        self.session: MessageSession = txpool.session("in.properties")

    def consume(self) -> None:
        """Until all have been done or parked. Whoever dies is followed by another one."""
        with txpool.transaction():
            for text in self.messages:
                key = self.chance.choice((None, "a", "b"))
                self.session.send(text, key=key, delay=self.chance.choice((0, 0, 0.2)))
        until(self._is_empty, 300, pause=0.02)
        (self.folder / "stop").write_text("")
        for each in self.running:
            errors = each.communicate(timeout=60)[1]
            assert each.wait() == 0, errors

    def _is_empty(self) -> bool:
        for each in [*self.running]:
            if each.poll() is not None:
                assert each.wait() < 0, each.communicate()[1]
                each.communicate()
                self.running.remove(each)
                self.deaths += 1
        while len(self.running) < CONSUMERS:
            dies = self.kills.pop() if self.kills else 0
            mark = "?" if self.place.kind == "sqlite" else "%s"
            arguments = [mark, f"{self.chance.random()}", str(dies)]
            self.running.append(preloaded.start("-c", CONSUMER, *arguments, cwd=self.folder, env=dict(os.environ)))
        return self._waiting() == 0

    def _waiting(self) -> int:
        tables = tables_of(self.place.orders)
        with closing(self.place.orders.connect()) as connection:
            return tables.state(connection.cursor(), "in")[0]

    def parked(self) -> list[str]:
        table = "txpool_spark.messages" if self.place.kind == "postgresql" else "txpool_messages"
        return sorted(bytes(body).decode() for (body,) in self.place.sql("orders", f"select body from {table}"))

    def check(self) -> None:
        good = sorted(each for each in self.messages if each.startswith(GOOD))
        bad = sorted({*self.messages} - {*good})
        done = sorted(text for (text,) in self.place.sql("orders", "select message from done"))
        assert (done, self.parked()) == (good, bad)
        tries = Counter((self.folder / "tries").read_text().splitlines())
        # A commit's failure is written behind it: by then each of the others may have begun one try more.
        more = {each: (CONSUMERS - 1) * each.startswith("at-commit") for each in bad}
        assert all(-self.strikes <= tries[each] - AFTER <= self.strikes + more[each] for each in bad), tries
        # What killed processes have left of messages that others have done goes with the next try.
        assert len(open_tries(self.place)) <= self.strikes
        self.session.send("good last")
        assert txpool.consumer(self.session)(lambda _: None).run(once=True) == 1
        assert open_tries(self.place) == []


@pytest.mark.part(3)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_all_that_can_be_done_is_done_and_nothing_else_parked_before_its_tries(
    place: Place, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    monkeypatch.chdir(tmp_path)
    at_work = Round(place, tmp_path, f"{SEED}.{place.kind}.{number}")
    print(f"seed {at_work.seed}, killed at {at_work.kills}")
    place.opened.append(at_work.session.source)  # type: ignore[arg-type]
    try:
        at_work.consume()
    finally:
        for each in at_work.running:
            each.kill()
    at_work.check()
    evidence.add(Count.KILLS, at_work.deaths)
