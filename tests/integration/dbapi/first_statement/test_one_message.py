"""PostgreSQL's BEGIN goes in one message with a transaction's first statement, and nothing else is seen of that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.integration.dbapi.first_statement.messages import INSERT, INTRANS, First, rolled_back, round_trips, traced
from txpool.datasource import DataSource
from txpool.resources.postgresql.session import first_statement, psycopg_private
from txpool.resources.postgresql.session.first_statement import ALWAYS, NEVER, WITH_PARAMETERS, may_share
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.mark.parametrize(
    "execute",
    [
        lambda connection: connection.execute(INSERT, (1, "v")),
        lambda connection: connection.execute(INSERT, (1, "v"), prepare=True),
        lambda connection: connection.execute(INSERT, params=(1, "v")),
        lambda connection: connection.execute("with x as (select 1) insert into t select 1, %(v)s;", {"v": "v"}),
        lambda connection: connection.cursor().execute(INSERT, (1, "v")),
        lambda connection: connection.cursor().execute(INSERT, [1, "v"], prepare=False),
    ],
    ids=["parameters", "prepared", "named", "by name", "cursor", "unprepared"],
)
def test_it_takes_one_round_trip(
    postgres_source: DataSource, databases: Databases, execute: First, tmp_path: Path
) -> None:
    with transaction(), postgres_source.connect() as connection, traced(connection, tmp_path / "trace") as names:
        cursor = execute(connection)
        assert (cursor.rowcount, cursor.statusmessage) == (1, "INSERT 0 1")
        assert connection.info.transaction_status is INTRANS
        assert connection.info.pipeline_status is psycopg.pq.PipelineStatus.OFF
    assert round_trips(names) == 1, names
    assert databases.rows("one", "select id, v from t") == [(1, "v")]


def test_a_query_without_parameters_too(postgres_source: DataSource, tmp_path: Path) -> None:
    for parameters in ((), (None,), ([],)):
        with transaction(), postgres_source.connect() as connection, traced(connection, tmp_path / "trace") as names:
            assert connection.execute("select 1;", *parameters).fetchall() == [(1,)]
        assert round_trips(names) == 1, names


@pytest.mark.parametrize("parameters", [(), (None,), ((),), ({},), ({"unused": 1},)])
@pytest.mark.parametrize("statement", ["insert into u values (1)", "with x as (select 1) insert into u table x"])
def test_rows_of_a_rule(
    postgres_source: DataSource, databases: Databases, statement: str, parameters: tuple[Any, ...]
) -> None:
    """Only as a simple query a write returns them, and psycopg sends what has no parameters so."""
    databases.execute("one", "create table u (id integer)")
    databases.execute("one", "create rule r as on insert to u do instead select 7 as seven")
    with psycopg.connect(databases.dsn("one")) as bare:
        expected = bare.execute(statement.encode(), *parameters).fetchall()
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute(statement, *parameters).fetchall() == expected == [(7,)]


@pytest.mark.parametrize("parameters", [(), [], {}, {"unused": 1}])
def test_a_per_cent_sign_is_no_parameter(postgres_source: DataSource, databases: Databases, parameters: Any) -> None:
    databases.execute("one", "create rule r as on insert to t do also select 7 as seven")
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("insert into t values (1, '5%%')", parameters).fetchall() == [(7,)]
    assert databases.rows("one", "select v from t") == [("5%",)]


def test_other_ways_to_give_it(postgres_source: DataSource, databases: Databases) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.execute(INSERT, (1, "v"))
    with transaction(), postgres_source.connect() as connection:
        cursor = connection.cursor().execute("select id from t where id = %s", (1,), binary=True)
        assert cursor.fetchall() == [(1,)]
        assert cursor.pgresult.fformat(0) == 1
    with transaction(), postgres_source.connect() as connection, pytest.raises(TypeError, match=r"execute\(\) takes"):
        connection.cursor().execute("select %s", (1,), (2,))
    with transaction(), postgres_source.connect() as connection:
        cursor = connection.cursor()
        cursor.close()
        with pytest.raises(psycopg.InterfaceError, match="closed"):
            cursor.execute("select 1")


@pytest.mark.parametrize("threshold", [0, 2, None])
@pytest.mark.parametrize("most", [1, 100])
def test_psycopg_s_prepared_statements_are_its_own(
    postgres_source: DataSource, databases: Databases, threshold: int | None, most: int
) -> None:
    """What psycopg knows of them, after each statement, and after each error."""
    choice = random.Random(7)
    statements: list[tuple[Any, ...]] = [
        ("select 1",),
        ("select %s", (1,)),
        ("select 1/%s", (0,)),
        ("selec %s", (1,)),
        ("select nothing %s", (1,)),
        (INSERT, (1, "v")),
        ("deallocate all",),
        ("drop table if exists nothing",),
    ]

    def after(connection: Any, raw: psycopg.Connection[Any], statement: tuple[Any, ...], prepare: bool | None) -> Any:
        raw.prepare_threshold, raw.prepared_max = threshold, most
        cursor = connection.cursor()
        try:
            told = cursor.execute(*statement, prepare=prepare).statusmessage
        except psycopg.Error as error:
            told = str(error)
        prepared = raw._prepared
        known = {*prepared._counts.items()}, {*prepared._names.items()}, prepared._prepared_idx, [*prepared._to_flush]
        return told, psycopg_private.sent_by(getattr(cursor, "raw", cursor)), known

    with psycopg.connect(databases.dsn("one")) as bare:
        for _ in range(100):
            how = choice.choice(statements), choice.choice([None, None, True, False])
            expected = after(bare, bare, *how)
            bare.pgconn.exec_(b"rollback")  # as psycopg's rollback() does not do it, which forgets them all
            with rolled_back(), postgres_source.connect() as connection:
                assert after(connection, connection.current_enlistment().raw, *how) == expected, how


def test_a_libpq_without_pipelines(postgres_source: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise psycopg.NotSupportedError

    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    monkeypatch.setattr(first_statement, "executing_after", missing)
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select 'no pipeline', %s", (1,)).fetchone() == ("no pipeline", 1)


def test_every_execution_of_the_same_statement(postgres_source: DataSource, databases: Databases) -> None:
    """psycopg prepares it at the sixth."""
    for number in range(8):
        with transaction(), postgres_source.connect() as connection:
            assert connection.execute(INSERT, (number, "v")).rowcount == 1
    with transaction(), postgres_source.connect() as connection:
        prepared = connection.execute("select statement from pg_prepared_statements").fetchall()
    assert prepared == [("insert into t values ($1, $2)",)]
    assert databases.rows("one", "select count(*) from t") == [(8,)]


def test_it_answers_as_psycopg(postgres_source: DataSource, databases: Databases) -> None:
    statements: list[tuple[Any, ...]] = [
        ("select 1 as a, 'x' as b, null, %s::date", ["2020-02-29"]),
        ("select 1 as a, 'x' as b",),
        ("select n from generate_series(1, %s) n", [5000]),
        ("select n from generate_series(1, 0) n",),
        ("with x as (insert into t values (%(id)s, 'v') returning id) select * from x", {"id": 3}),
        ("update t set v = 'w' where false",),
        ("  SELECT 'without a %' ;\n",),
        ("select current_setting('transaction_isolation')",),
        (sql.SQL("select {}").format(sql.Literal(7)),),
        (b"select 8",),
        ("select 1; select 2",),
        ("/* a comment */ select 9",),
        ("show transaction_read_only",),
        ("values (1), (2)",),
    ]

    def answer(cursor: Any) -> list[Any]:
        rows = cursor.fetchall() if cursor.description else None
        described = [(column.name, column.type_code) for column in cursor.description or ()]
        return [rows, described, cursor.rowcount, cursor.statusmessage, cursor.nextset(), cursor.rownumber]

    with psycopg.connect(databases.dsn("one")) as bare:
        for statement in statements:
            expected = answer(bare.cursor().execute(*statement))
            bare.rollback()
            for execute in (lambda it: it.execute, lambda it: it.cursor().execute):
                with rolled_back(), postgres_source.connect() as connection:
                    assert answer(execute(connection)(*statement)) == expected, statement


def test_what_may_share() -> None:
    always = ("select 1", " SELECT 1; ", "select %s")
    with_parameters = (
        "insert into t values (%s)",
        "with a as (select %s) select 2",
        "update t set a = %(a)s",
        "delete from t where a = %s",
        "merge into t using u on t.id = %s when matched then delete",
    )
    never = (
        "copy t to stdout",
        "select 1; select 2",
        "select $1",
        "insert into t values (1)",
        "insert into t values ('5%%')",
        "begin",
        "-- x\nselect 1",
        "",
        ";",
        "call p()",
        b"select 1",
    )
    for statements, answer in ((always, ALWAYS), (with_parameters, WITH_PARAMETERS), (never, NEVER)):
        assert {may_share(each) for each in statements * 2} == {answer}


def test_few_answers_are_kept() -> None:
    first_statement._answers.clear()
    may_share("select 1" + " " * 5000)
    assert not first_statement._answers
    for number in range(2000):
        may_share(f"select {number}")
        assert 0 < len(first_statement._answers) <= 512
