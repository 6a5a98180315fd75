"""A subordinate transaction over real databases: it ends prepared, and never rolls back what it has sent."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError, TransactionRolledBack
from txpool.resources.base import LocationKey
from txpool.tm import ambient
from txpool.tm.completion.status import Status
from txpool.tm.demarcation import calls as demarcation
from txpool.tm.observers import observe
from txpool.tm.subordinate import Subordinate
from txpool.xid import TaskName, parse

if TYPE_CHECKING:
    from tests.conftest import Databases

_PHASES: tuple[Literal["before", "success", "failure", "after"], ...] = ("before", "success", "failure", "after")
GTRID = "txp1:driver:abcdefghijkl:1"


@pytest.fixture
def pair(databases: Databases) -> Iterator[tuple[DataSource, DataSource]]:
    """A datasource for each database, with a table that has a deferred constraint."""
    for name in (databases.one, databases.two):
        databases.execute(name, "create table landed (id int unique deferrable initially deferred)")
    with (
        databases.datasource("one") as one,
        databases.datasource("two") as two,
    ):
        yield one, two


@contextmanager
def task(places: Collection[LocationKey] | None = None) -> Iterator[Subordinate]:
    subordinate = Subordinate(GTRID, write=2, partition=3, attempt=17, locations=places)
    demarcation.resume(subordinate)
    try:
        yield subordinate
    finally:
        demarcation.suspend()


def insert(datasource: DataSource, *rows: int) -> None:
    for row in rows:
        datasource.connect().cursor().execute("insert into landed values (%s)", [row])


def test_observers_are_told_neither_of_success_nor_of_failure_since_nobody_knows_it_yet(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    heard: list[str] = []
    stops = [observe(lambda _, phase=phase: heard.append(phase), phase, str) for phase in _PHASES]  # type: ignore[misc]
    try:
        with task() as subordinate:
            subordinate.fire("event")
            insert(pair[0], 1)
            subordinate.prepare()
    finally:
        for stop in stops:
            stop()
    assert subordinate.status is Status.PREPARED
    assert heard == ["before", "after"]
    assert len(databases.prepared()) == 1


def test_it_prepares_nowhere_but_where_the_log_has_a_note_and_by_no_other_role(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, two = pair
    noted = {one.prepare_location().key, two.prepare_location().key}
    for places, why in (
        ({one.prepare_location().key}, r"datasource two: nothing was prepared .* datasources=\[…\]"),
        ({(identity, "1") for identity, _ in noted}, r"logs in as another role .* give both the same user"),
    ):
        with task(places) as subordinate:
            insert(one, 1)
            insert(two, 1)
            with pytest.raises(ProgrammingError, match=why):
                subordinate.prepare()
        assert databases.prepared() == []
    with task(noted) as subordinate:
        insert(one, 1)
        insert(two, 1)
        subordinate.prepare()
    assert len(databases.prepared()) == 2


def test_it_ends_prepared_under_the_names_of_its_task(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, two = pair
    ended: list[Status] = []
    with task() as subordinate:
        insert(two, 1)
        insert(one, 1)
        subordinate.after_completion(ended.append)
        records = subordinate.prepare()
    assert [record.datasource for record in records] == ["two", "one"]
    assert sorted(record.xid.joined for record in records) == databases.prepared()
    assert {record.xid.task for record in records} == {TaskName(2, 3, 17, 2)}
    there = dict(databases.rows("one", "select datname::text, oid::text from pg_database"))
    assert all(record.identity.endswith(f"/{there[record.datasource]}") for record in records)
    assert subordinate.status is Status.PREPARED
    assert ended == [Status.PREPARED]
    with pytest.raises(ProgrammingError, match="has ended"):
        subordinate.rollback()
    assert len(databases.prepared()) == 2
    assert one.statistics().taken == two.statistics().taken == 0


def test_an_interrupt_in_a_callback_goes_on_after_the_other_callbacks(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    def interrupted(_: Status) -> None:
        raise KeyboardInterrupt

    ended: list[Status] = []
    with task() as subordinate:
        insert(pair[0], 1)
        subordinate.after_completion(ended.append)
        subordinate.after_completion(interrupted)
        with pytest.raises(KeyboardInterrupt):
            subordinate.prepare()
    assert ended == [Status.PREPARED]
    assert len(databases.prepared()) == 1


def test_what_did_nothing_is_neither_prepared_nor_counted(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, two = pair
    with task() as subordinate:
        two.connect()
        insert(one, 1)
        (record,) = subordinate.prepare()
    assert databases.prepared() == [record.xid.joined]
    assert record.xid.task == TaskName(2, 3, 17, 1)
    assert two.statistics().idle == 1


def test_before_a_prepare_it_can_roll_back(databases: Databases, pair: tuple[DataSource, DataSource]) -> None:
    with task() as subordinate:
        insert(pair[0], 1)
        subordinate.rollback()
    assert databases.prepared() == []
    assert databases.rows("one", "select * from landed") == []


def test_a_branch_that_votes_no_leaves_the_others_to_the_coordinator(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, two = pair
    with task() as subordinate:
        insert(one, 1)
        insert(two, 1, 1)
        with pytest.raises(two.driver_adapter.module.errors.UniqueViolation):
            subordinate.prepare()
        assert subordinate.ended
    (gid,) = databases.prepared()
    xid = parse(gid)
    assert xid is not None
    assert (xid.tag, xid.task) == ("one", TaskName(2, 3, 17, 2))


def test_a_branch_that_cannot_be_sent_a_prepare_is_rolled_back(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, two = pair
    with task() as subordinate:
        insert(one, 1)
        insert(two, 1)
        with pytest.raises(two.driver_adapter.module.errors.DivisionByZero):
            two.connect().cursor().execute("select 1 / 0")
        with pytest.raises(TransactionRolledBack, match="two voted to roll back"):
            subordinate.prepare()
    # Both connections were closed: the server goes on with the one's PREPARE, and ends the other's transaction.
    locks = "select 1 from pg_locks where relation = 'landed'::regclass"
    while not databases.prepared() or databases.rows("two", locks):
        time.sleep(0.01)
    assert [parse(gid).tag for gid in databases.prepared()] == ["one"]  # type: ignore[union-attr]


def test_only_its_coordinator_decides(databases: Databases, pair: tuple[DataSource, DataSource]) -> None:
    with task() as subordinate:
        insert(pair[0], 1)
        for end in (demarcation.commit, demarcation.rollback, subordinate.commit):
            with pytest.raises(ProgrammingError):
                end()
            assert ambient.current() is subordinate
        subordinate.prepare()
    assert len(databases.prepared()) == 1


def test_what_cannot_prepare_is_refused(databases: Databases, pair: tuple[DataSource, DataSource]) -> None:
    with (
        databases.datasource("two", "ledger", mode="cmr") as ledger,
        task() as subordinate,
    ):
        insert(pair[0], 1)
        with pytest.raises(ProgrammingError, match=r"ledger \(mode=cmr\) cannot be used inside a task"):
            ledger.connect()
        subordinate.rollback()


def test_an_interrupt_while_prepare_waits_for_another_threads_statement_leaves_it_to_roll_back(
    databases: Databases, pair: tuple[DataSource, DataSource]
) -> None:
    one, _ = pair

    def interrupt() -> None:
        while subordinate.active:
            time.sleep(0.01)
        time.sleep(0.2)  # it has come to wait by then
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with task() as subordinate:
            insert(one, 1)
            executing = threading.Thread(target=one.connect().cursor().execute, args=("select pg_sleep(2)",))
            executing.start()
            while not databases.rows("one", "select 1 from pg_stat_activity where query = 'select pg_sleep(2)'"):
                time.sleep(0.01)
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                subordinate.prepare()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not subordinate.ended
    subordinate.rollback()
    executing.join()
    assert one.statistics().taken == 0
    assert databases.prepared() == []
    assert databases.rows("one", "select * from landed") == []
