"""What a user sets on a connection of psycopg's: factories, adapters, listeners. It holds for that handle alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg.types.numeric import IntLoader
from psycopg.types.string import StrDumper

from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction


class Counting(psycopg.Cursor[Any]):
    """A user's own: attributes, a property, methods that execute, an override with an argument of its own."""

    statements = 0

    def execute(self, query: Any, params: Any = None, *, shout: bool = False, **options: Any) -> Any:
        self.statements += 1
        return super().execute(query.upper() if shout else query, params, **options)

    @property
    def doubled(self) -> int:
        return 2 * self.statements

    def value(self, query: str) -> Any:
        return self.execute(query).fetchone()[0]

    def chained(self, query: str) -> Counting:
        self.execute(query)
        return self

    def each(self, query: str) -> Iterator[Any]:
        yield from self.execute(query)


class Named(psycopg.ServerCursor[Any]):
    def first(self) -> Any:
        return self.fetchone()


class Raw(psycopg.RawCursor[Any]):
    pass


class OldStyle(psycopg.ClientCursor[Any]):
    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:
        return super().execute(query, params, prepare=prepare)


@pytest.fixture(params=["plain", "enlisted"])
def around(request: pytest.FixtureRequest) -> Any:
    return transaction if request.param == "enlisted" else nullcontext


def test_a_cursor_class_of_the_users_own(postgres_source: DataSource, around: Any) -> None:
    with around(), postgres_source.connect() as connection, postgres_source.connect() as other:
        connection.cursor_factory = Counting
        assert connection.cursor_factory is Counting
        cursor = connection.cursor()
        assert isinstance(cursor, Counting)
        assert cursor.connection is connection
        assert cursor.execute("select 'a' as x", shout=True).fetchone() == ("A",)
        assert cursor.value("select 7") == 7
        assert cursor.chained("select 8") is cursor
        assert cursor.fetchone() == (8,)
        assert list(cursor.each("select generate_series(1, 2)")) == [(1,), (2,)]
        assert (cursor.statements, cursor.doubled) == (4, 8)
        cursor.statements = 40
        cursor.label = "mine"
        assert (cursor.doubled, cursor.label) == (80, "mine")
        assert cursor.arraysize == 1
        cursor.arraysize = 2
        assert len(cursor.execute("select generate_series(1, 3)").fetchmany()) == 2
        executed = connection.execute("select 1")
        assert isinstance(executed, Counting)
        assert executed.statements == 1
        assert connection.execute("select 1", binary=True).fetchone() == (1,)
        assert not isinstance(other.cursor(), Counting)
        assert not hasattr(other.cursor(), "statements")
        with pytest.raises(AttributeError):
            other.cursor().label = "mine"
    with postgres_source.connect() as connection:
        assert connection.cursor_factory is psycopg.Cursor
        assert type(connection.cursor().raw) is psycopg.Cursor


def test_a_server_side_one(postgres_source: DataSource, around: Any) -> None:
    with around(), postgres_source.connect() as connection:
        connection.server_cursor_factory = Named
        with connection.cursor("far") as cursor:
            assert isinstance(cursor, Named)
            assert not hasattr(connection.cursor(), "first")
            assert cursor.execute("select generate_series(1, 3)").fetchmany(1) == [(1,)]
            assert cursor.first() == (2,)
    with postgres_source.connect() as connection:
        assert connection.server_cursor_factory is psycopg.ServerCursor


def test_psycopgs_other_classes(postgres_source: DataSource, around: Any) -> None:
    with around(), postgres_source.connect() as connection:
        for factory, query in ((psycopg.ClientCursor, "select %s"), (Raw, "select $1")):
            connection.cursor_factory = factory
            assert isinstance(connection.cursor(), factory)
            assert connection.execute(query, [1]).fetchone() == (1,)
        connection.cursor_factory = psycopg.ClientCursor
        assert connection.cursor().mogrify("select %s", ["a'b"]) == "select 'a''b'"
        connection.cursor_factory = OldStyle
        assert connection.execute("select %s", ["x"]).fetchone() == ("x",)
        connection.server_cursor_factory = psycopg.RawServerCursor
        with connection.cursor("far") as far:
            assert far.execute("select $1::int", [1]).fetchall() == [(1,)]


def test_they_go_with_the_handle_into_a_transaction_and_out(postgres_source: DataSource) -> None:
    connection: Any = postgres_source.connect()
    connection.cursor_factory, connection.row_factory = Counting, dict_row
    cursor = connection.cursor()
    cursor.label = "mine"
    for number in range(2):
        assert cursor.execute("select 1 as a").fetchone() == {"a": 1}
        assert (cursor.label, cursor.statements) == ("mine", 2 * number + 1)
        connection.commit()
        with transaction():
            assert cursor.execute("select 1 as a").fetchone() == {"a": 1}
            assert isinstance(connection.cursor(), Counting)
            assert isinstance(connection.execute("select 1"), Counting)
            assert postgres_source.connect().cursor().execute("select 1").fetchone() == (1,)
    connection.close()


class Loud(IntLoader):
    def load(self, data: Any) -> Any:
        return f"{super().load(data)}!"


class Upper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(obj.upper())


class Void(Loader):
    def load(self, data: Any) -> str:
        return "void"


def test_adapters(postgres_source: DataSource, around: Any) -> None:
    with around(), postgres_source.connect() as connection, postgres_source.connect() as other:
        early = connection.cursor()
        connection.adapters.register_loader("int4", Loud)
        connection.adapters.register_dumper(str, Upper)
        late = connection.cursor()
        assert late.execute("select 1, %s", ["a"]).fetchone() == ("1!", "A")
        assert early.execute("select 1").fetchone() == (1,)  # as psycopg has it
        assert other.execute("select 1, %s", ["a"]).fetchone() == (1, "a")
        late.adapters.register_loader("int8", Loud)
        assert late.execute("select 1::int8").fetchone() == ("1!",)
        assert connection.execute("select 1::int8").fetchone() == (1,)
        assert psycopg.sql.Literal("a").as_string(connection).strip() == "'A'"
    with postgres_source.connect() as connection:
        assert connection.execute("select 1, %s", ["a"]).fetchone() == (1, "a")


def test_listeners(postgres_source: DataSource, around: Any) -> None:
    postgres_source.pool.resize(0, 1)
    heard: list[Any] = []

    def hear_notice(notice: Any) -> None:
        heard.append(notice.message_primary)

    def hear_notify(notify: Any) -> None:
        heard.append(notify.payload)

    notice = "do $$ begin raise notice 'told'; end $$"
    with around(), postgres_source.connect() as connection:
        connection.add_notice_handler(hear_notice)
        connection.execute(notice)
        connection.remove_notice_handler(hear_notice)
        connection.execute(notice)
        with pytest.raises(ValueError, match="not in list"):
            connection.remove_notice_handler(hear_notice)
        connection.add_notice_handler(hear_notice)
    assert heard == ["told"]
    with postgres_source.connect() as connection:
        connection.execute(notice)
        connection.add_notify_handler(hear_notify)
        connection.execute("listen news")
        connection.commit()
        connection.execute("notify news, 'sent'")
        connection.commit()
        connection.execute("select 1")
    assert heard == ["told", "sent"]
    with postgres_source.connect() as connection:
        connection.execute("listen news")
        connection.execute("notify news, 'later'")
        connection.commit()
        assert [each.payload for each in connection.notifies(timeout=1, stop_after=1)] == ["later"]
    assert heard == ["told", "sent"]
    with postgres_source.connect() as connection:
        assert list(connection.notifies(timeout=0.01)) == []


def test_attributes_of_the_users_own(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection, postgres_source.connect() as other:
        connection.label = "mine"  # type: ignore[attr-defined]
        assert connection.label == "mine"
        assert not hasattr(other, "label")
        with transaction():
            connection.cursor().execute("select 1")
            assert connection.label == "mine"
