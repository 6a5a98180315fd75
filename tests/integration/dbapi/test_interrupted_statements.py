"""An interrupt while a statement's changes are noted, or attributes are set: the next user finds nothing of it."""

from __future__ import annotations

import itertools
from contextlib import closing, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.interrupts import at_each_check, codes_of
from txpool.dbapi import driver_attributes
from txpool.dbapi.enlistment import Enlistment
from txpool.resources.postgresql.driver import PsycopgDriver
from txpool.resources.postgresql.handle.cursor import PsycopgCursor
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource

_NOTING = Enlistment.finish, PsycopgCursor._executed, PsycopgDriver.ended_by
CODES = codes_of(driver_attributes) | {each.__code__ for each in _NOTING}
#: Python looks for signals at its very start, too, where nothing of ours catches one.
AT_ITS_START = PsycopgCursor._executed.__code__


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


@pytest.mark.parametrize("around", [transaction, nullcontext], ids=["enlisted", "plain"])
def test_what_it_has_changed_is_not_left(postgres_source: DataSource, around: Any) -> None:
    for nth in itertools.count():
        left, place = [nth], [""]

        def strike(frame: FrameType, left: list[int] = left, place: list[str] = place) -> None:
            if frame.f_code is AT_ITS_START and frame.f_lineno == AT_ITS_START.co_firstlineno:
                return
            left[0] -= 1
            if left[0] == -1:
                place[0] = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise Interrupt

        try:
            with around(), closing(postgres_source.connect()) as connection, at_each_check(CODES, strike):
                connection.add_notice_handler(print)
                connection.execute("select pg_advisory_lock(7)")
                connection.execute("prepare mine as select 1")
        except Interrupt:
            pass
        with closing(postgres_source.connect()) as connection:
            for question in (
                "pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",  # a closed session may end later
                "pg_prepared_statements where from_sql",
            ):
                assert connection.execute(f"select * from {question}").fetchall() == [], place
            assert connection.get_attribute("_notice_handlers") == [], place
        if not place[0]:
            break
    assert nth > 10
