"""An interrupt wherever one can come while a block begins or ends: nothing stays ambient, open or half done."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import FrameType
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.interrupts import at_each_check, codes_of
from tests.support.waiting import until
from txpool.datasource import DataSource
from txpool.tm import ambient
from txpool.tm.ambient import current, make_ambient
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.demarcation import block as scope
from txpool.tm.demarcation.block import transaction
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

_ENDING = Transaction.end_commit, Transaction.end_rollback, Transaction._end
_STARTING = Coordinator.commit, Coordinator.rollback, Coordinator._run
CODES = codes_of(ambient) | codes_of(scope) | {each.__code__ for each in (*_ENDING, *_STARTING)}
#: What holds locks.
_LEFT = """select query from pg_stat_activity where state like 'idle in transaction%'
    union all select gid from pg_prepared_xacts"""


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


class Interrupting:
    """Raises at the n-th place."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.place = ""

    def strike(self, frame: FrameType) -> None:
        code = frame.f_code
        self._left -= 1
        if self._left == -1:
            self.place = f"{code.co_name}, line {frame.f_lineno}"
            raise Interrupt


@pytest.fixture(params=[1, 2], ids=["one database", "two databases"])
def sources(request: pytest.FixtureRequest, databases: Databases) -> Iterator[list[DataSource]]:
    with ExitStack() as stack:
        opened = []
        for name in ("one", "two")[: request.param]:
            databases.execute(name, "create table t (id integer primary key)")
            opened.append(stack.enter_context(databases.datasource(name)))
        yield opened


def _insert(sources: list[DataSource], number: int, *, fails: bool) -> None:
    with transaction():
        for source in sources:
            with closing(source.connect()) as connection:
                connection.execute("insert into t values (%s)", (number,))
        if fails:
            raise ZeroDivisionError


# One that comes in a finaliser is shown there, and swallowed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_an_interrupt_wherever_one_can_come(databases: Databases, sources: list[DataSource], fails: bool) -> None:
    with ExitStack() as stack:
        looking = [stack.enter_context(psycopg.connect(databases.dsn(each.name), autocommit=True)) for each in sources]
        for nth in itertools.count():
            interrupting = Interrupting(nth)
            try:
                with at_each_check(CODES, interrupting.strike):
                    _insert(sources, nth, fails=fails)
            except (Interrupt, ZeroDivisionError):
                pass
            left = current()
            make_ambient(None)
            assert left is None, f"interrupted in {interrupting.place}"
            del left
            until(lambda: not looking[0].execute(_LEFT).fetchall(), what=f"interrupted in {interrupting.place}")
            there = {(nth,) in each.execute("select id from t").fetchall() for each in looking}
            assert len(there) == 1, f"interrupted in {interrupting.place}"
            if not interrupting.place:
                assert there == {not fails}
                break
    assert nth > 10
