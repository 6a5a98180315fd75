"""connection.execute() uses psycopg's cursor of a command again: nobody sees by that what was executed before."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row, scalar_row
from psycopg.types import TypeInfo

from txpool.datasource import DataSource
from txpool.pool import PoolListener
from txpool.resources.postgresql.handle.cursor import ExecutedCursor
from txpool.resources.postgresql.session import psycopg_private
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

INSERT = "insert into t values (%s, %s)"


class Shouting(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode().upper()


class Word(str):
    __slots__ = ()


class ShoutingDumper(Dumper):
    def dump(self, obj: Word) -> bytes:
        return obj.upper().encode()


@pytest.fixture
def connection(postgres_source: DataSource) -> Iterator[Any]:
    """In a transaction, on a connection with a spare cursor."""
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 0)
        assert connection.enlistment.raw.spare
        yield connection


def insert(connection: Any, number: int, word: str = "v") -> ExecutedCursor:
    cursor: ExecutedCursor = connection.execute(INSERT, (number, word), prepare=True)
    return cursor


def test_it_is_used_again_and_in_the_next_transaction(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 1)
        (first,) = connection.enlistment.raw.spare
        insert(connection, 2)
        assert connection.enlistment.raw.spare == [first]
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 3)
        assert connection.enlistment.raw.spare == [first]


def test_each_cursor_keeps_its_own_answer(connection: Any) -> None:
    several = "insert into t select n, 'v' from generate_series(%s::int, %s) n"
    cursors = [connection.execute(several, (10 * n, 10 * n + n), prepare=True) for n in (1, 2, 3)]
    assert [cursor.rowcount for cursor in cursors] == [2, 3, 4]
    assert [cursor.statusmessage for cursor in cursors] == ["INSERT 0 2", "INSERT 0 3", "INSERT 0 4"]
    assert [cursor.rowcount for cursor in cursors] == [2, 3, 4]
    assert [cursor.description for cursor in cursors] == [None, None, None]
    assert all(cursor.connection is connection for cursor in cursors)


def test_it_answers_as_a_cursor_of_psycopgs(postgres_source: DataSource, databases: Databases) -> None:
    def answers(cursor: Any) -> list[Any]:
        with pytest.raises(psycopg.ProgrammingError) as fetched:
            cursor.fetchone()
        with pytest.raises(psycopg.ProgrammingError) as iterated:
            next(iter(cursor))
        return [
            isinstance(cursor, psycopg.Cursor), cursor.rowcount, cursor.rownumber, cursor.statusmessage,
            cursor.nextset(), cursor.arraysize, cursor.format, cursor.row_factory, cursor.closed, str(fetched.value),
            str(iterated.value), len(list(cursor.results())), bytes(cursor.pgresult.command_status),
        ]  # fmt: skip

    with psycopg.connect(databases.url("one"), password=databases.server.password) as bare:
        expected = answers(bare.execute(INSERT, (1, "v"), prepare=True))
        bare.rollback()
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 0)
        assert answers(insert(connection, 1)) == expected


def test_a_command_that_tells_no_count(connection: Any) -> None:
    cursor = connection.execute("create table u (id integer)", prepare=True)
    assert (cursor.rowcount, cursor.statusmessage) == (-1, "CREATE TABLE")


def test_it_executes_again(connection: Any) -> None:
    first, second = insert(connection, 1), insert(connection, 2)
    assert first.execute("select 'first'") is first
    assert second.execute("select 'second'").fetchall() == [("second",)]
    assert first.fetchall() == [("first",)]
    first.execute("insert into t values (3, 'v')")
    assert (first.rowcount, insert(connection, 4).rowcount) == (1, 1)


def test_its_factory_and_adapters_are_those_of_when_it_was_made(connection: Any) -> None:
    first = insert(connection, 1)
    connection.row_factory = dict_row
    connection.adapters.register_loader("text", Shouting)
    assert first.execute("select v from t where id = 1").fetchone() == ("v",)
    assert connection.execute("select v from t where id = 1").fetchone() == {"v": "V"}
    first.adapters.register_loader("text", Shouting)
    assert first.execute("select v from t where id = 1").fetchone() == ("V",)


def test_a_loader_that_is_registered_on_it_after_its_statement(connection: Any) -> None:
    cursor = insert(connection, 1)
    adapters = cursor.adapters
    cursor.execute("select 'v'::text")
    adapters.register_loader("text", Shouting)
    assert cursor.fetchone() == ("V",)


def test_what_is_set_on_it_does_not_reach_the_next(connection: Any) -> None:
    cursor = insert(connection, 1)
    cursor.row_factory = dict_row
    cursor.arraysize = 7
    cursor.adapters.register_dumper(Word, ShoutingDumper)
    cursor.adapters.register_loader("text", Shouting)
    del cursor
    insert(connection, 2, Word("w"))
    assert connection.execute("select v from t where id = 2").fetchone() == ("w",)
    assert insert(connection, 3).arraysize == 1


def test_adapters_of_the_connection(connection: Any) -> None:
    insert(connection, 1, Word("w"))
    connection.adapters.register_dumper(Word, ShoutingDumper)
    insert(connection, 2, Word("w"))
    assert connection.execute("select id, v from t where id > 0 order by id").fetchall() == [(1, "w"), (2, "W")]


def test_adapters_of_another_handle(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as mine, postgres_source.connect() as other:
        mine.adapters.register_dumper(Word, ShoutingDumper)
        for number in (1, 2, 3):
            insert(mine, number, Word("w"))
            insert(other, 10 + number, Word("w"))
        words = other.execute("select string_agg(v, '' order by id) from t").fetchone()
    assert words == ("WWWwww",)


class Own(psycopg.Cursor[Any]):
    pass


class Setting(PoolListener):
    """Sets something on the connection from its second take on."""

    def __init__(self, how: Callable[[Any], object]) -> None:
        self.how, self.takes = how, 0

    def taken(self, pool: str, connection: Any) -> None:
        self.takes += 1
        if self.takes > 1:
            self.how(connection)


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        (lambda raw: raw.adapters.register_dumper(Word, ShoutingDumper), (("W",), psycopg.Cursor)),
        (lambda raw: setattr(raw, "row_factory", scalar_row), ("w", psycopg.Cursor)),
        (lambda raw: setattr(raw, "cursor_factory", Own), (("w",), Own)),
    ],
    ids=["adapters", "row_factory", "cursor_factory"],
)
def test_what_a_listener_sets(databases: Databases, how: Any, seen: tuple[Any, type]) -> None:
    databases.execute("one", "create table t (id integer primary key, v text)")
    listeners = [Setting(how)]
    with databases.datasource("one", listeners=listeners) as datasource:
        for number in (1, 2):
            with transaction(), datasource.connect() as connection:
                insert(connection, number, Word("w"))
                cursor = connection.execute("select v from t where id = %s", (number,))
                row, kind = cursor.fetchone(), type(cursor.raw)
                insert(connection, 10 + number)  # leaves a spare cursor to the next transaction
    assert (row, kind) == seen


def test_adapters_that_somebody_has_kept(connection: Any) -> None:
    kept = connection.enlistment.raw.adapters  # as a listener may
    insert(connection, 1, Word("w"))
    kept.register_dumper(Word, ShoutingDumper)
    insert(connection, 2, Word("w"))
    assert connection.execute("select v from t where id > 0 order by id").fetchall() == [("w",), ("W",)]


def test_types_that_somebody_has_registered(connection: Any) -> None:
    types = connection.enlistment.raw.adapters.types
    insert(connection, 1)
    types.add(TypeInfo("own", 999999, 999998))
    assert insert(connection, 2).adapters.types["own"].oid == 999999


def test_the_encoding_of_now(postgres_source: DataSource, databases: Databases) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.execute(
            "create function pg_temp.encode_as(name text) returns text language sql as "
            "$$ select set_config('client_encoding', name, true) $$"
        )
        other = connection.cursor()
        insert(connection, 1, "é")
        other.execute("update t set v = v where pg_temp.encode_as('latin1') is not null")
        insert(connection, 2, "é")
    assert databases.rows("one", "select v from t") == [("é",), ("é",)]


def test_the_time_zone_of_now(connection: Any) -> None:
    other, query = connection.cursor(), "select timestamptz '2026-01-01 00:00:00+00'"
    insert(connection, 1)
    for zone, hours in (("UTC", 0), ("Asia/Tokyo", 9)):
        other.execute(f"set local time zone '{zone}'")
        (time,) = connection.execute(query, prepare=True).fetchone()
        assert time.utcoffset() == timedelta(hours=hours)
        del time


def test_a_dumper_of_now(connection: Any) -> None:
    """psycopg keeps a cursor's dumpers for as long as that executes the same statement."""
    number = iter(range(1, 9))

    class Numbering(Dumper):
        def __init__(self, cls: type, context: Any = None) -> None:
            super().__init__(cls, context)
            self.number = next(number)

        def dump(self, obj: Word) -> bytes:
            return f"{obj} {self.number}".encode()

    connection.enlistment.raw.adapters.register_dumper(Word, Numbering)  # as a listener does
    for key in (1, 2):
        insert(connection, key, Word("w"))
    assert connection.execute("select v from t where id > 0 order by id").fetchall() == [("w 1",), ("w 2",)]


def test_in_a_pipeline(connection: Any) -> None:
    with connection.pipeline():
        cursors = [insert(connection, number) for number in range(1, 50)]
        rows = connection.execute("select 'rows'")
    assert {cursor.rowcount for cursor in cursors} == {1}
    assert rows.fetchall() == [("rows",)]
    assert insert(connection, 50).rowcount == 1


def test_rows_and_columns_stay_with_their_cursor(connection: Any) -> None:
    returned = connection.execute("insert into t values (1, 'v') returning id", prepare=True)
    none = connection.execute("delete from t where id = 99 returning id", prepare=True)
    insert(connection, 2)
    assert returned.fetchall() == [(1,)]
    assert [column.name for column in none.description] == ["id"]


def test_a_statement_that_fails(connection: Any) -> None:
    with connection.transaction():
        kept = insert(connection, 1)
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        insert(connection, 1)
    assert kept.rowcount == 1
    assert insert(connection, 2).rowcount == 1


def test_after_the_transaction_it_tells_its_answer_and_executes_nothing(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 0)
        seen, unseen = insert(connection, 1), insert(connection, 2)
        assert seen.statusmessage == "INSERT 0 1"
    for cursor in (seen, unseen):
        assert cursor.rowcount == 1
        with pytest.raises(psycopg.OperationalError, match="closed"):
            cursor.execute("select 1")
    assert unseen.statusmessage == "INSERT 0 1"


def test_closed_it_executes_nothing(connection: Any) -> None:
    with insert(connection, 1) as cursor:
        pass
    assert cursor.closed
    with pytest.raises(psycopg.InterfaceError):
        cursor.execute("select 1")
    assert insert(connection, 2).rowcount == 1


def test_a_finaliser_that_executes_during_a_statement(connection: Any) -> None:
    class Writing:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            answers.append(insert(connection, 100))

    answers: list[ExecutedCursor] = []
    Writing()
    taken = connection.enlistment.raw.spare.pop()  # as another statement has it, at its start
    gc.collect()
    (answer,) = answers
    assert taken not in connection.enlistment.raw.spare
    assert answer.rowcount == 1


def test_threads_that_ask_it_at_once(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor, both = insert(connection, 1), threading.Barrier(2, timeout=60)

    def slowly(*args: Any) -> Any:
        made = psycopg_private.cursor_with(*args)
        both.wait()
        return made

    monkeypatch.setattr("txpool.resources.postgresql.handle.cursor.cursor_with", slowly)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cursor.raw, range(2))
    assert first is second is cursor.raw
    assert cursor.statusmessage == "INSERT 0 1"


def test_rows_do_not_stay_with_the_connection(connection: Any) -> None:
    spare = connection.enlistment.raw.spare
    connection.execute("select repeat('x', 1000)", prepare=True)
    assert not spare
    insert(connection, 1)
    (kept,) = connection.enlistment.raw.spare
    assert kept.pgresult.ntuples == 0


def test_an_idle_connection_keeps_no_parameters(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        insert(connection, 0)
    tracemalloc.start()
    try:
        with transaction(), postgres_source.connect() as connection:
            for number in range(1, 8):
                connection.execute(INSERT, (number, "v" * 5_000_000))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_closed_connection_is_no_part_of_a_cycle(databases: Databases) -> None:
    databases.execute("one", "create table t (id integer primary key, v text)")
    gc.disable()
    try:
        with databases.datasource("one") as datasource:
            with transaction(), datasource.connect() as connection:
                insert(connection, 1)
                raw = weakref.ref(connection.enlistment.raw)
            del connection
        del datasource
        assert raw() is None
    finally:
        gc.enable()
