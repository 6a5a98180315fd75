"""How a local transaction of PostgreSQL begins: as the connection's modes say, also after an interrupt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

SERIALIZABLE = psycopg.IsolationLevel.SERIALIZABLE


@contextmanager
def interrupted_after(name: str) -> Iterator[None]:
    """An interrupt as psycopg's function of this name returns, if it is called within the block."""

    def in_function(_: FrameType, event: str, __: object) -> Callable[..., Any]:
        if event == "return":
            sys.settrace(None)
            raise KeyboardInterrupt
        return in_function

    def in_any(frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        return in_function if frame.f_code.co_name == name and "psycopg" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(in_any)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)


def test_a_mode_that_is_set_in_spite_of_an_interrupt_counts(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        with interrupted_after("_set_read_only_gen"):
            connection.read_only = True
        (read_only,) = connection.execute("show transaction_read_only").fetchone()
        assert read_only == ("on" if connection.read_only else "off")


def test_no_next_user_has_another_level_than_is_configured(databases: Databases) -> None:
    with DataSource(
        name="one",
        driver="psycopg",
        url=databases.url("one"),
        password=databases.server.password,
        pool_max_size=1,
        transaction_isolation="serializable",
    ) as datasource:
        with transaction(), datasource.connect() as connection:
            connection.isolation_level = None
            with interrupted_after("_set_isolation_level_gen"):
                connection.isolation_level = SERIALIZABLE
        for _ in range(2):
            with transaction(), datasource.connect() as connection:
                assert connection.execute("show transaction_isolation").fetchone() == ("serializable",)


def test_a_statement_that_was_never_sent_is_no_work(postgres_source: DataSource) -> None:
    """Its first failure in the client makes the transaction no writer, and the session no other one."""
    with transaction(), postgres_source.connect() as connection:
        with pytest.raises(psycopg.ProgrammingError):
            connection.execute("select %s, %s", (1,))
        raw = connection.current_enlistment().raw
        assert (raw.wrote, raw.changed, raw.prepared) == (False, False, False)
        connection.execute("select 1")
        assert (raw.wrote, raw.changed, raw.prepared) == (False, False, False)
