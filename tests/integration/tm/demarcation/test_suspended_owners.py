"""A block that is suspended is not over: who works in its transaction goes on, whatever has entered the block.

An interrupt may have left another block before, and a traceback be kept, as Jupyter does: that one is over.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import txpool
from tests.integration.tm.demarcation.test_left_by_interrupts import END, Table, given_up
from tests.support.struck import struck
from tests.support.waiting import until
from txpool import transaction

# Blocks without work of their own
pytestmark = pytest.mark.filterwarnings("ignore::txpool.EmptyTransactionWarning")

Body: TypeAlias = Callable[[txpool.Transaction], None]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with closing(Table(tmp_path)) as table:
        yield table


def a_generator(body: Body) -> None:
    def work() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    generator = work()
    body(next(generator))
    assert next(generator, None) is None


def a_generator_within_another(body: Body) -> None:
    def inner() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    def outer() -> Iterator[txpool.Transaction]:
        yield from inner()

    generator = outer()
    body(next(generator))
    assert next(generator, None) is None


def a_generator_with_a_loop(body: Body) -> None:
    """It is suspended anew within the same block, in a `for`, a `while` and a `try`."""

    def work() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            for _ in range(2):
                yield opened
            left = 2
            while left:
                left -= 1
                try:
                    yield opened
                finally:
                    pass

    for opened in work():
        body(opened)


def an_asynchronous_generator(body: Body) -> None:
    async def work() -> AsyncIterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened
            await asyncio.sleep(0)

    async def main() -> None:
        async for opened in work():
            body(opened)

    asyncio.run(main())


def a_coroutine(body: Body) -> None:
    async def work(opened: asyncio.Future[txpool.Transaction], done: asyncio.Event) -> None:
        with transaction() as begun:
            opened.set_result(begun)
            await asyncio.create_task(inherits(begun, done))
            await done.wait()

    async def inherits(begun: txpool.Transaction, done: asyncio.Event) -> None:
        body(begun)
        await asyncio.to_thread(body, begun)
        done.set()

    async def main() -> None:
        await work(asyncio.get_running_loop().create_future(), asyncio.Event())

    asyncio.run(main())


def a_context_manager(body: Body) -> None:
    @contextmanager
    def work() -> Iterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    with work() as opened:
        body(opened)
    manager = work()
    body(manager.__enter__())
    manager.__exit__(None, None, None)


def an_asynchronous_context_manager(body: Body) -> None:
    @asynccontextmanager
    async def work() -> AsyncIterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    async def main() -> None:
        async with work() as opened:
            body(opened)
        async with AsyncExitStack() as stack:
            body(await stack.enter_async_context(work()))

    asyncio.run(main())


def an_exit_stack(body: Body) -> None:
    def enter(stack: ExitStack) -> txpool.Transaction:
        return stack.enter_context(transaction())

    with ExitStack() as stack:
        body(enter(stack))
    stack = ExitStack()
    body(enter(stack))
    stack.close()
    with ExitStack() as first:
        opened = enter(first)
        kept = first.pop_all()
    body(opened)
    kept.close()


def a_test_case(body: Body) -> None:
    """unittest's enterContext(), and setUp() with tearDown()."""

    class Case(unittest.TestCase):
        def setUp(self) -> None:
            self.opened = self.enterContext(transaction())

        def test(self) -> None:
            body(self.opened)

    class Other(unittest.TestCase):
        def setUp(self) -> None:
            self.block = transaction()
            self.opened = self.block.__enter__()

        def tearDown(self) -> None:
            self.block.__exit__(None, None, None)

        def test(self) -> None:
            body(self.opened)

    for case in (Case, Other):
        result = unittest.TestResult()
        case("test").run(result)
        assert not result.errors, result.errors[0][1]
        assert result.testsRun == 1


def begin(body: Body) -> None:
    def opens() -> txpool.Transaction:
        return txpool.begin()

    body(opens())
    txpool.commit()


def begin_in_a_block_of_another_kind(body: Body) -> None:
    with suppress(KeyError):
        opened = txpool.begin()
        raise KeyError
    body(opened)
    txpool.commit()


def resume(body: Body) -> None:
    """In another thread, and then behind the block of a function that has returned."""
    failed: list[BaseException] = []

    def elsewhere(opened: txpool.Transaction) -> None:
        try:
            txpool.resume(opened)
            body(opened)
            assert txpool.suspend() is opened
        except BaseException as error:
            failed.append(error)

    def opens() -> txpool.Transaction:
        opened = txpool.begin()
        assert txpool.suspend() is opened
        return opened

    opened = opens()
    thread = threading.Thread(target=elsewhere, args=(opened,))
    thread.start()
    thread.join()
    assert not failed, failed
    txpool.resume(opened)
    body(opened)
    txpool.commit()


def resume_of_a_block(body: Body) -> None:
    """While a block of its own suspends it."""
    with transaction() as opened:
        assert txpool.suspend() is opened
        with transaction() as other:
            assert other is not opened
        txpool.resume(opened)
        body(opened)


def a_dependency_of_fastapi(body: Body) -> None:
    """With `yield`: the endpoint works while it is suspended, also a synchronous one in a thread."""
    fastapi = pytest.importorskip("fastapi")
    failed: list[BaseException] = []

    async def dependency() -> AsyncIterator[txpool.Transaction]:
        with transaction() as opened:
            yield opened

    of_dependency = fastapi.Depends(dependency)

    async def nested(opened: Any = of_dependency) -> AsyncIterator[txpool.Transaction]:
        with transaction() as inner:
            assert inner is opened
            yield opened

    of_nested = fastapi.Depends(nested)

    def work(opened: Any = of_nested) -> dict[str, str]:
        try:
            body(opened)
        except BaseException as error:
            failed.append(error)
            raise
        return {}

    async def asynchronous(opened: Any = of_nested) -> dict[str, str]:
        return work(opened)

    application = fastapi.FastAPI()
    application.get("/thread")(work)
    application.get("/loop")(asynchronous)

    async def request(path: str) -> int:
        said: list[dict[str, Any]] = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [], "root_path": "",
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await application(scope, receive, send)
        return int(said[0]["status"])

    for path in ("/loop", "/thread"):
        assert asyncio.run(request(path)) == 200, failed


OWNERS = [
    a_generator,
    a_generator_within_another,
    a_generator_with_a_loop,
    an_asynchronous_generator,
    a_coroutine,
    a_context_manager,
    an_asynchronous_context_manager,
    an_exit_stack,
    a_test_case,
    begin,
    begin_in_a_block_of_another_kind,
    resume,
    resume_of_a_block,
    a_dependency_of_fastapi,
]
#: They work in a copy of the context.
COPIES = (an_asynchronous_generator, a_coroutine, an_asynchronous_context_manager, a_dependency_of_fastapi)
#: What was before, and keeps its traceback.
BEFORE = ["nothing", "an error", "a block that an interrupt left"]


@pytest.fixture(params=BEFORE)
def before(request: pytest.FixtureRequest, table: Table) -> Iterator[str]:
    if request.param == "an error":
        try:
            with transaction():
                raise ZeroDivisionError
        except ZeroDivisionError as error:
            sys.last_traceback = error.__traceback__
    elif request.param == "a block that an interrupt left":
        with struck(END) as came, pytest.raises(KeyboardInterrupt) as caught, transaction():
            table.insert(0)
        assert came
        sys.last_traceback = caught.tb
    yield request.param
    sys.last_traceback = None


def joins(table: Table, opened: txpool.Transaction) -> None:
    """Blocks and statements of a function that is called, an error in it too, join the one that is open."""
    assert txpool.current() is opened
    with transaction() as inner:
        assert inner is opened
        table.insert(1)
    try:
        raise KeyError
    except KeyError as error:
        sys.last_traceback = error.__traceback__
        table.insert(2)
    assert txpool.current() is opened
    assert opened.status is txpool.Status.ACTIVE


@pytest.mark.parametrize("owner", OWNERS)
def test_it_goes_on(owner: Callable[[Body], None], table: Table, before: str, caplog: Any) -> None:
    bodies: list[txpool.Transaction] = []

    def body(opened: txpool.Transaction) -> None:
        bodies.append(opened)
        joins(table, opened)

    left = before == "a block that an interrupt left"
    if left and owner in COPIES:
        # The context is a copy, perhaps from within the block: what would go on there is refused.
        with pytest.raises(txpool.ProgrammingError, match=r"was given up and rolls back.*Nothing was done"):
            owner(body)
        assert not bodies
        assert txpool.current() is None
    owner(body)
    assert txpool.current() is None
    assert bodies
    assert table.rows() == [1] * len(bodies) + [2] * len(bodies)
    assert {opened.status for opened in bodies} == {txpool.Status.COMMITTED}
    until(lambda: len(given_up(caplog)) >= left)  # a thread says it, perhaps once the connection is back
    assert len(given_up(caplog)) == left


@pytest.fixture
def of_fixture(before: str, table: Table) -> Iterator[txpool.Transaction]:
    """pytest's own: suspended while the test works."""
    with transaction() as opened:
        yield opened
    assert table.rows() == [1, 2]


@pytest.fixture
def around_it(of_fixture: txpool.Transaction) -> Iterator[txpool.Transaction]:
    with transaction() as opened:
        assert opened is of_fixture
        yield opened


def test_a_fixture_goes_on(around_it: txpool.Transaction, table: Table) -> None:
    joins(table, around_it)
    assert table.source.statistics().taken == 1
