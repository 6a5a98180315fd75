"""An interrupt at the first instruction of a block's end: nobody works in its transaction later without being told."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.opcodes import trace_opcodes
from tests.support.struck import struck
from tests.support.waiting import until
from txpool import ProgrammingError, transaction, transactional

pytestmark = [
    pytest.mark.usefixtures("nobody_watches"),
]
END = transaction.__exit__


@pytest.fixture
def nobody_watches() -> Iterator[None]:
    """Nothing of an earlier test's is ambient, and no traceback is kept."""
    yield
    sys.last_traceback = None
    assert txpool.current() is None


class Table:
    """A table in a file of SQLite's; a second transaction at once is refused."""

    def __init__(self, folder: Path) -> None:
        self.source = txpool.DataSource(
            name="one",
            driver="sqlite3",
            mode="local",
            url=f"sqlite:///{folder}/one.db",
            pool_max_size=1,
            pool_max_wait=10,
        )
        self._bare = sqlite3.connect(folder / "one.db", isolation_level=None, timeout=10)
        self._bare.execute("create table t (n integer)")

    def insert(self, number: int) -> None:
        with closing(self.source.connect()) as connection:
            connection.execute("insert into t values (?)", (number,))

    def rows(self) -> list[int]:
        """What is committed, once nobody has the lock."""
        self._bare.execute("begin immediate")
        self._bare.execute("rollback")
        return [number for (number,) in self._bare.execute("select n from t order by n")]

    def close(self) -> None:
        self.source.close()
        self._bare.close()


def given_up(caplog: Any) -> list[str]:
    """What was said of transactions that nobody can commit."""
    return [each.getMessage() for each in caplog.records if "nobody can commit it" in each.getMessage()]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    table = Table(tmp_path)
    yield table
    table.close()


def one_block(table: Table) -> None:
    with transaction():
        table.insert(1)


def two_blocks(table: Table) -> None:
    with transaction(), closing(table.source.connect()) as connection:
        connection.execute("insert into t values (1)")
    raise AssertionError


def a_generator(table: Table) -> None:
    def work() -> Iterator[None]:
        with transaction():
            table.insert(1)
            yield

    for _ in work():
        pass


def a_context_manager(table: Table) -> None:
    @contextmanager
    def work() -> Iterator[None]:
        with transaction():
            yield

    with work():
        table.insert(1)


def a_coroutine(table: Table) -> None:
    async def work() -> None:
        with transaction():
            await asyncio.sleep(0)
            table.insert(1)

    coroutine = work()
    with suppress(StopIteration):
        while True:
            coroutine.send(None)


def a_decorated_function(table: Table) -> None:
    transactional(table.insert)(1)


def a_stack(table: Table) -> None:
    with ExitStack() as stack:
        stack.enter_context(transaction())
        table.insert(1)


def failing(table: Table) -> None:
    with transaction():
        table.insert(1)
        raise ZeroDivisionError


def a_loop(table: Table) -> None:
    for number in range(3):
        with transaction():
            table.insert(number)
            if number < 5:
                break


WORK = [
    one_block,
    two_blocks,
    a_generator,
    a_context_manager,
    a_coroutine,
    a_decorated_function,
    a_stack,
    failing,
    a_loop,
]


@pytest.mark.parametrize("kept", [False, True], ids=["", "traceback kept"])
@pytest.mark.parametrize("work", WORK)
def test_the_next_block_is_its_own(table: Table, work: Callable[[Table], None], kept: bool, caplog: Any) -> None:
    with struck(END) as came, pytest.raises(KeyboardInterrupt) as error:
        work(table)
    assert came
    if kept:
        sys.last_traceback = error.tb  # as Jupyter keeps it
    del error
    if work is a_stack:  # nobody knows that it will not be closed later, until the collector has found it
        sys.last_traceback = None
        gc.collect()
    with transaction() as second:
        table.insert(2)
    assert table.rows() == [2]
    assert second.status is txpool.Status.COMMITTED
    until(lambda: given_up(caplog))  # a thread says it, perhaps once the connection is back
    (said,) = given_up(caplog)
    assert "left by its block without its end" in said
    assert table.source.statistics().taken == 0


@pytest.mark.parametrize("where", ["in the handler", "behind it", "in a loop", "in a function that the handler calls"])
def test_in_the_same_frame(table: Table, where: str) -> None:
    def later() -> None:
        with transaction():
            table.insert(2)

    def work() -> None:
        with struck(END):
            try:
                with transaction():
                    table.insert(1)
            except KeyboardInterrupt as error:
                kept.append(error)
                if where == "in the handler":
                    with transaction():
                        table.insert(2)
                elif where == "in a function that the handler calls":
                    later()
        if where == "behind it":
            with transaction():
                table.insert(2)

    def loop() -> None:
        with struck(END):
            for number in (1, 2):
                try:
                    with transaction():
                        table.insert(number)
                except KeyboardInterrupt as error:
                    kept.append(error)

    kept: list[BaseException] = []
    (loop if where == "in a loop" else work)()
    assert kept
    assert table.rows() == [2]


@pytest.mark.parametrize("kept", [False, True], ids=["", "traceback kept"])
def test_a_statement_outside_is_outside(table: Table, kept: bool) -> None:
    connection = table.source.connect()
    with struck(END), pytest.raises(KeyboardInterrupt) as error, transaction():
        connection.execute("insert into t values (1)")
    if kept:
        sys.last_traceback = error.tb
    del error
    with suppress(ProgrammingError):  # it may say that its transaction was left, once
        connection.execute("select 1")
    connection.execute("insert into t values (2)")
    connection.commit()
    connection.close()
    assert table.rows() == [2]


def test_begin_begins(table: Table) -> None:
    with struck(END), pytest.raises(KeyboardInterrupt) as error:
        one_block(table)
    sys.last_traceback = error.tb
    assert txpool.current() is None
    txpool.begin()
    table.insert(2)
    txpool.commit()
    assert table.rows() == [2]


@pytest.mark.parametrize("work", ["block", "begin", "statement"])
def test_in_a_copy_of_its_context_it_is_refused(table: Table, work: str) -> None:
    """The copy may be older than the block's end: what goes on there may be a part of it."""

    def in_copy() -> None:
        for _ in range(2):
            with pytest.raises(ProgrammingError, match=r"was given up and rolls back.*Nothing was done"):
                if work == "block":
                    with transaction():
                        pytest.fail("it joins")
                elif work == "begin":
                    txpool.begin()
                else:
                    table.insert(2)
        txpool.suspend()
        with transaction():
            table.insert(3)

    with struck(END), pytest.raises(KeyboardInterrupt) as error:
        one_block(table)
    sys.last_traceback = error.tb
    contextvars.copy_context().run(in_copy)
    assert txpool.current() is None
    assert table.rows() == [3]


def test_what_was_suspended_by_requires_new_goes_on(table: Table, tmp_path: Path) -> None:
    with txpool.DataSource(name="two", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/two.db") as other:
        with closing(other.connect()) as connection:
            connection.execute("create table t (n integer)")
            connection.commit()

        @transactional("requires_new")
        def inner() -> None:
            with closing(other.connect()) as connection:
                connection.execute("insert into t values (1)")

        with transaction() as outer:
            table.insert(1)
            with struck(END), pytest.raises(KeyboardInterrupt) as error:
                inner()
            assert txpool.current() is outer
            table.insert(2)
            del error
        with closing(other.connect()) as connection:
            assert connection.execute("select n from t").fetchall() == []
    assert table.rows() == [1, 2]


# -- blocks that are not over ------------------------------------------------------------------------------------------


def joins(table: Table, opened: txpool.Transaction) -> None:
    """A nested block joins the one that is open, and so does a statement."""
    assert txpool.current() is opened
    with transaction() as inner:
        assert inner is opened
        table.insert(1)
    table.insert(2)
    assert opened.status is txpool.Status.ACTIVE


def test_a_suspended_generator_is_not_over(table: Table) -> None:
    def work() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    generator = work()
    joins(table, next(generator))
    assert next(generator, None) is None
    assert table.rows() == [1, 2]


def test_a_suspended_coroutine_is_not_over(table: Table) -> None:
    async def main() -> None:
        opened: asyncio.Future[txpool.Transaction] = asyncio.get_running_loop().create_future()

        async def nested() -> None:
            joins(table, await opened)

        with transaction() as begun:
            opened.set_result(begun)
            await asyncio.create_task(nested())
            await asyncio.to_thread(joins, table, begun)

    asyncio.run(main())
    assert table.rows() == [1, 1, 2, 2]


def test_an_exit_stack_is_not_over(table: Table) -> None:
    def opened(stack: ExitStack) -> txpool.Transaction:
        return stack.enter_context(transaction())

    stack = ExitStack()
    joins(table, opened(stack))
    with pytest.raises(ZeroDivisionError) as error:
        1 / 0
    sys.last_traceback = error.tb
    joins(table, txpool.current())  # type: ignore[arg-type]
    stack.close()
    assert table.rows() == [1, 1, 2, 2]


def test_an_entered_context_manager_is_not_over(table: Table) -> None:
    @contextmanager
    def work() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    with ExitStack() as stack:
        joins(table, stack.enter_context(work()))
    manager = work()
    joins(table, manager.__enter__())
    manager.__exit__(None, None, None)
    assert table.rows() == [1, 1, 2, 2]


def test_a_class_that_keeps_the_block_is_not_over(table: Table) -> None:
    class Work:
        def __enter__(self) -> txpool.Transaction:
            self._block = transaction()
            return self._block.__enter__()

        def __exit__(self, *raised: Any) -> None:
            self._block.__exit__(*raised)

    with Work() as opened:
        joins(table, opened)
    assert table.rows() == [1, 2]


def test_begin_is_not_over(table: Table) -> None:
    def opened() -> txpool.Transaction:
        return txpool.begin()

    joins(table, opened())
    txpool.commit()
    assert table.rows() == [1, 2]


def test_a_resumed_transaction_is_not_over(table: Table) -> None:
    def elsewhere(opened: txpool.Transaction) -> None:
        txpool.resume(opened)
        joins(table, opened)

    with transaction() as opened:
        assert txpool.suspend() is opened
        thread = threading.Thread(target=elsewhere, args=(opened,))
        thread.start()
        thread.join()
        txpool.resume(opened)
        joins(table, opened)
    assert table.rows() == [1, 1, 2, 2]


def test_an_error_that_was_handled_leaves_it_open(table: Table) -> None:
    with transaction() as opened:
        for _ in range(2):
            with suppress(ZeroDivisionError):
                1 / 0
        joins(table, opened)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            sys.last_traceback = error.__traceback__
            joins(table, opened)
        finally:
            joins(table, opened)
    assert table.rows() == [1, 1, 1, 2, 2, 2]


def test_callbacks_at_its_end_are_within(table: Table) -> None:
    with transaction() as opened:

        def before() -> None:
            assert txpool.current() is opened
            with transaction() as inner:
                assert inner is opened
                table.insert(1)

        opened.before_completion(before)
    assert table.rows() == [1]


def test_every_instruction_of_a_block_is_within() -> None:
    """Another thread asks, and a signal's handler, wherever the block's frame is."""
    asked = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal asked
        if frame.f_code is not work.__code__:
            return None
        frame.f_trace_opcodes = True
        opened = txpool.tm.ambient.ambient_variable.get()
        if event == "opcode" and opened is not None and opened.status is txpool.Status.ACTIVE:
            asked += 1
            sys.settrace(None)
            assert txpool.current() is opened, frame.f_lasti
            sys.settrace(trace)
        return trace

    def work(items: list[int]) -> int:
        with transaction():
            left = 0
            for item in items:
                if item == 1:
                    continue
                left = item
                while left:
                    left -= 1
                try:
                    items[item + 10]
                except IndexError:
                    pass
                finally:
                    left += 1
                with suppress(ValueError):
                    [int(str(each)) for each in items]
            if left > 5:
                return 1
            try:
                return left
            finally:
                left += 1

    former = sys.gettrace()
    trace_opcodes(trace)
    try:
        work([0, 1, 2])
    finally:
        sys.settrace(former)
    assert asked > 100


def test_nothing_was_given_up(table: Table) -> None:
    """The frames that a transaction knows are forgotten with its block."""
    with transaction() as opened:
        assert opened.extent is not None
    assert opened.extent is None
