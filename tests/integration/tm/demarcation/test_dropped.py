"""A transaction that nobody can end any more: it is rolled back and reported, and no finaliser waits for a database."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.tm.demarcation.reports import Reports, in_a_thread, rolled_back
from tests.integration.tm.demarcation.table import OneDatasource
from tests.support.waiting import until
from txpool.errors import Error, InterfaceError, OperationalError, ProgrammingError
from txpool.tm.ambient import make_ambient
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, suspend
from txpool.tm.lifetime import TransactionScoped
from txpool.tm.manager import configure, get_manager
from txpool.tm.subordinate import Subordinate
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)


def test_the_thread_that_began_it_has_ended(world: OneDatasource, reports: Reports) -> None:
    def work() -> None:
        begin()  # here
        world.insert(world.datasource.connect(), 1)

    in_a_thread(work)
    rolled_back(world)
    text = reports.one("here")
    assert "dropped without its end, so that nobody can commit it any more: it rolls back" in text
    assert text.endswith("It held a connection of one")


def test_a_lost_reference(world: OneDatasource, reports: Reports) -> None:
    tx: Transaction | None = begin()  # here
    ended: list[Status] = []
    tx.after_completion(ended.append)  # type: ignore[union-attr]
    connection = world.datasource.connect()
    world.insert(connection, 1)
    suspend()
    assert reports.texts == []
    del tx
    rolled_back(world)
    assert ended == [Status.ROLLED_BACK]
    reports.one("here")
    with pytest.raises(Error, match=r"which has ended \(rolled back\)"):
        connection.cursor()


def test_what_lives_as_long_as_it_does_not_keep_it(world: OneDatasource, reports: Reports) -> None:
    closed: list[list[int]] = []
    basket: TransactionScoped[list[int]] = TransactionScoped(list, closed.append)
    gc.disable()
    try:
        begin(timeout=3600)  # here
        basket().append(1)
        world.insert(world.datasource.connect(), 1)
        suspend()
        rolled_back(world)
    finally:
        gc.enable()
    assert closed == [[1]]
    reports.one("here")


class Cycle:
    """What an application may keep together: only the collector finds it."""

    def __init__(self, **kept: object) -> None:
        self.kept = kept
        self.itself = self


def test_it_is_found_by_the_collector(world: OneDatasource, reports: Reports) -> None:
    tx = begin()  # here
    connection = world.datasource.connect()
    cursor = connection.cursor()
    cursor.execute("insert into t values (1)")
    Cycle(tx=suspend(), connection=connection, cursor=cursor)
    ended: list[Status] = []
    tx.after_completion(ended.append)
    del tx, connection, cursor
    gc.collect()
    rolled_back(world)
    assert ended == [Status.ROLLED_BACK]
    reports.one("here")
    assert world.datasource.statistics().lost == 0


def test_an_exit_stack_is_not_where_it_was_begun(world: OneDatasource, reports: Reports) -> None:
    def work() -> None:
        stack = ExitStack()
        stack.enter_context(transaction())  # here
        world.insert(world.datasource.connect(), 1)
        stack.pop_all()

    in_a_thread(work)
    rolled_back(world)
    reports.one("here")


def test_a_finaliser_does_not_wait(world: OneDatasource, reports: Reports) -> None:
    """Whatever the collector strikes in: the connection is busy, and the pool's lock is held by the very thread."""
    begin()  # here
    connection = world.datasource.connect()
    world.insert(connection, 1)
    lost = [suspend()]
    called: list[str] = []
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with enlistment.lock:
            busy.set()
            go_on.wait(60)

    enlistment = connection.enlistment
    thread = threading.Thread(target=work)
    thread.start()
    busy.wait(60)
    try:
        with world.datasource.pool.state.lock:
            sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
            lost.clear()
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        go_on.set()
        thread.join()
    assert {"__del__", "roll_back_abandoned"} <= set(called)
    assert not {"_end", "end_rollback", "rollback", "give_back", "warning", "release"} & set(called)
    rolled_back(world)
    reports.one("here")


def test_a_handle_that_outlives_it_can_do_nothing(world: OneDatasource) -> None:
    lost = [begin()]
    connection = world.datasource.connect()
    world.insert(connection, 1)
    suspend()
    Cycle(lost=lost)
    del lost
    errors: list[BaseException] = []

    def work() -> None:
        try:
            world.insert(connection, 2)
        except Error as error:
            errors.append(error)

    gc.collect()
    in_a_thread(work)
    # While it rolls back, and, by the class that the driver has for a closed connection, once it has.
    assert isinstance(errors[0], ProgrammingError | InterfaceError | OperationalError)
    rolled_back(world)


def test_a_forked_child_does_nothing(world: OneDatasource, reports: Reports) -> None:
    def work() -> Iterator[None]:
        with transaction():
            yield

    lost = [begin()]
    world.insert(world.datasource.connect(), 1)
    suspend()
    generator = contextvars.copy_context().run(work)
    contextvars.copy_context().run(next, generator)
    child = os.fork()
    if child == 0:
        lost.clear()
        del generator
        gc.collect()
        time.sleep(0.2)
        os._exit(len(reports.texts) + threading.active_count() - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reports.texts == []
    lost.pop().commit()
    assert world.read() == [1]


@on_postgresql
def test_prepared_branches_of_tasks_roll_back(world: OneDatasource, databases: Databases, reports: Reports) -> None:
    tx = begin()  # here
    suspend()
    task = Subordinate(tx.gtrid, write=1, partition=0, attempt=0)
    token = make_ambient(task)
    world.insert(world.datasource.connect(), 1)
    records = task.prepare()
    make_ambient(None)
    del token
    tx.adopt([world.datasource.prepared_branch(record) for record in records], late_branches=True)
    assert len(databases.prepared()) == 1
    del tx
    until(lambda: databases.prepared() == [])
    assert "It held 1 prepared branches of tasks" in reports.one("here")
    rolled_back(world)


def test_a_task_s_part_is_dropped(world: OneDatasource) -> None:
    if world.datasource.mode != "xa":
        return
    task: Any = Subordinate("txp1:driver:abcdefghijkl:1", write=1, partition=0, attempt=0)
    make_ambient(task)
    world.insert(world.datasource.connect(), 1)
    make_ambient(None)
    del task
    rolled_back(world)


def test_one_that_is_open_for_long_is_reported_once_and_goes_on(world: OneDatasource, reports: Reports) -> None:
    manager = configure(node_name="tests", log_url="memory:", transaction_leak_threshold="1s")
    with closing(manager):
        with transaction():  # here
            world.insert(world.datasource.connect(), 1)
            text = reports.one("here")
            assert "open for longer than transaction.leak-threshold (1 s), and stays so" in text
            assert text.endswith("holds a connection of one")
            time.sleep(0.3)
        reports.one("here")
        assert world.read() == [1]
        with transaction():
            pass
        time.sleep(0.2)
        reports.one("here")


def test_it_is_off_by_default() -> None:
    assert get_manager().settings.transaction_leak_threshold is None


def test_the_end_of_the_program_waits_for_it_and_tells_once(world: OneDatasource) -> None:
    options = {key: str(value) for key, value in world.options.items()}
    source = f"""
        import threading, txpool
        datasource = txpool.DataSource(**{options!r})

        def work():
            txpool.begin()
            datasource.connect().cursor().execute("insert into t values (1)")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        del thread  # from Python 3.14 on, it keeps what it has begun
        txpool.begin()
        datasource.connect().cursor().execute("select n from t")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len([line for line in lines if "dropped without its end" in line]) == 1, done.stderr
    assert len([line for line in lines if "the program ends without an end to it" in line]) == 1, done.stderr
    assert len(lines) == 2, done.stderr
    assert world.read() == []


def test_what_outlives_the_modules_is_silent() -> None:
    """What an extension holds is collected last, once the names of each module that lives as long are gone."""
    source = """
        import builtins, sys, txpool
        tx = txpool.begin()
        txpool.rollback()
        builtins.kept = [[each for name, each in sys.modules.items() if name.startswith("txpool")], tx]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@contextmanager
def unit_of_work() -> Iterator[Transaction]:
    with transaction() as tx:  # helper
        yield tx


def test_a_block_that_is_left_by_its_own_means_is_no_drop(world: OneDatasource, reports: Reports) -> None:
    with pytest.raises(ZeroDivisionError), unit_of_work() as tx:
        raise ZeroDivisionError
    assert tx.status is Status.ROLLED_BACK
    begin()
    world.insert(world.datasource.connect(), 1)
    commit()
    gc.collect()
    assert world.read() == [1]
    assert reports.texts == []
