"""As test_messages.py, over JMS: consumers, recovery and the broker are killed, and each message is done once.

By default 100 messages and 4 kills, chosen by a seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1, 1,000 and 26.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from recovery.manager import RecoveryManager
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED
from tests.crash.test_messages import KILLS, MESSAGES, Work
from tests.support.jms.broker import Artemis
from tests.support.jms.fixtures import artemis, write_site
from tests.support.waiting import until
from txpool.datasource import registry

__all__ = ["artemis"]
pytestmark = pytest.mark.slow

#: Their messages are delivered however often.
QUEUES = "crash.in0", "crash.out0"


@pytest.fixture
def work(artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> Iterator[Work]:
    monkeypatch.chdir(tmp_path)
    write_site(tmp_path, artemis, QUEUES, tries=1000)
    txpool.configure("txpool.properties")
    source = txpool.DataSource.from_properties("orders.properties")
    with closing(sqlite3.connect("orders.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table done (body text)")
    source.xids_table().create()  # type: ignore[attr-defined]
    source.close()
    eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
    print(f"seed {SEED}")
    made = Work(tmp_path, artemis, QUEUES, random.Random(SEED))
    yield made
    for role in [*made.running]:
        made.kill(role)
    for each in registry.opened():
        each.close()
    txpool.configure()


def test_each_message_is_one_row_and_one_message(work: Work, artemis: Artemis) -> None:
    inward = txpool.session("in.properties")
    with txpool.transaction():
        for number in range(MESSAGES):
            inward.send(str(number))
    inward.close()
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
    expected = Counter(map(str, range(MESSAGES)))
    assert Counter(work.done()) == expected
    assert Counter(artemis.bodies(QUEUES[1])) == expected
    assert artemis.bodies(QUEUES[0]) == []
