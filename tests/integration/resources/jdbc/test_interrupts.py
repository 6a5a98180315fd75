"""An interrupt between any two steps of a statement or a fetch: no later statement, row or mode is another one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from tests.support.interrupts import at_each_check, codes_of
from tests.support.jdbc import Jars, h2
from txpool.resources.jdbc.dbapi import connection, cursor, decoding, encoding, errors
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.resources.jdbc.dbapi.cursor import JdbcCursor
from txpool.resources.jdbc.jvm import jvm

_ROWS = 12_000
#: Larger than the buffer, so that it is exchanged.
_LARGE = "x" * 200_000


class Strike(BaseException):
    """An interrupt."""


def _codes() -> set[CodeType]:
    found = set().union(*map(codes_of, (connection, cursor, decoding, encoding, errors, jvm)))
    for each in vars(JdbcConnection).values():
        if isinstance(each, property):
            found |= {getter.__code__ for getter in (each.fget, each.fset) if getter is not None}  # type: ignore[attr-defined]
    return found - {JdbcCursor.__del__.__code__}  # an exception there is only shown


_CODES = _codes()


@contextmanager
def struck_at(place: int) -> Iterator[list[int]]:
    """Within the block, an interrupt comes at this place; gives how many places there were."""
    count = [0]

    def strike(_: object) -> None:
        count[0] += 1
        if count[0] == place:
            raise Strike

    with at_each_check(_CODES, strike):
        yield count


def sweep(work: Callable[[], object], check: Callable[[], None]) -> None:
    """Interrupt the work at each place; the check has to hold after each."""
    place, reached = 0, 0
    while reached == place:
        place += 1
        try:
            with struck_at(place) as count:
                work()
        except (Strike, errors.Error):
            pass
        reached = count[0]
        check()
    assert place > 20, "the work has more places than that"


def test_a_statement_after_an_interrupted_one_is_its_own(jdbc_jars: Jars) -> None:
    raw = h2(jdbc_jars, "mem:interrupts").connect()
    raw.execute("create table t (i int, s varchar)")
    number = [0]

    def check() -> None:
        number[0] += 1
        assert raw.execute("select ?, 'own'", (number[0],)).fetchall() == [(number[0], "own")]

    def work() -> None:
        raw.execute("insert into t values (?, ?)", (1, _LARGE)).close()
        raw.execute("select s from t limit 3").fetchall()

    sweep(work, check)
    sweep(lambda: raw.cursor().executemany("insert into t values (?, ?)", [(1, "x"), (2, "y")]), check)
    assert set(raw.execute("select i, s from t where s in ('x', 'y')").fetchall()) == {(1, "x"), (2, "y")}


def test_no_row_is_skipped_after_an_interrupted_fetch(jdbc_jars: Jars) -> None:
    """A fetch that was interrupted may be repeated, or fails: it never goes on behind a gap of many rows."""
    raw = h2(jdbc_jars, "mem:interrupts").connect()
    refused = place = reached = 0
    while reached == place:
        place += 1
        rows = raw.execute(f"select x from system_range(1, {_ROWS})")
        found: list[Any] = [rows.fetchone() for _ in range(500)]
        try:
            with struck_at(place) as count:
                found.append(rows.fetchone())
        except Strike:
            pass
        reached = count[0]
        try:
            found += rows.fetchall()
        except errors.OperationalError:
            refused += 1
            continue
        # The one row that fetchone() was about to return may be lost with it, as with any cursor.
        assert len(found) >= _ROWS - 1
        assert found[-1] == (_ROWS,)
    assert 0 < refused < place - 1


def test_the_mode_is_known_after_an_interrupt(jdbc_jars: Jars) -> None:
    raw = h2(jdbc_jars, "mem:interrupts").connect()

    def work() -> None:
        raw.autocommit = True
        raw.autocommit = False

    def check() -> None:
        assert raw.autocommit is bool(raw.java.getAutoCommit())

    sweep(work, check)
