"""PostgreSQL's BEGIN goes in one message with a transaction's first statement, and nothing else is seen of that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from txpool.datasource import DataSource
from txpool.errors import HeuristicCommit, TransactionRolledBack
from txpool.resources.postgresql import first_statement, psycopg_private
from txpool.resources.postgresql.first_statement import ALWAYS, NEVER, WITH_PARAMETERS, may_share
from txpool.tm.scope import transaction
from txpool.tm.status import Status

if TYPE_CHECKING:
    from tests.conftest import Databases

INSERT = "insert into t values (%s, %s)"
IDLE, INTRANS = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INTRANS

First = Callable[[Any], Any]


@contextmanager
def traced(connection: Any, path: Path) -> Iterator[list[str]]:
    """The names of the messages, as libpq has sent and received them within the block."""
    pgconn = connection.current_enlistment().raw.pgconn
    names: list[str] = []
    with path.open("w") as file:
        pgconn.trace(file.fileno())
        try:
            yield names
        finally:
            pgconn.untrace()
    for line in path.read_text().splitlines():
        _, sender, _, name, *rest = [*line.split("\t"), ""]
        names.append(f"{sender} {name} {rest[0]}".strip())


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that rolls back in any case."""
    with suppress(TransactionRolledBack), transaction() as tx:
        yield
        tx.set_rollback_only()


def round_trips(names: list[str]) -> int:
    """How often the server was waited for."""
    return sum(name.startswith("B ReadyForQuery") for name in names)


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


@pytest.mark.parametrize(
    ("statement", "parameters", "error"),
    [
        ("selec", (), psycopg.errors.SyntaxError),
        ("select 1/%s", (0,), psycopg.errors.DivisionByZero),
        ("select nothing", (), psycopg.errors.UndefinedColumn),
        ("insert into t values (%s, %s)", (1, "taken"), psycopg.errors.UniqueViolation),
    ],
)
@pytest.mark.parametrize("prepare", [None, True])
def test_it_fails(
    postgres_source: DataSource,
    databases: Databases,
    statement: str,
    parameters: tuple[Any, ...],
    error: type[Exception],
    prepare: bool | None,
) -> None:
    databases.execute("one", "insert into t values (1, 'v')")
    with pytest.raises(TransactionRolledBack, match="its error was caught") as caught:  # noqa: SIM117
        with transaction(), postgres_source.connect() as connection:
            with pytest.raises(error):
                connection.execute(statement, parameters or None, prepare=prepare)
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR
    # psycopg forgets a prepared statement that has failed; one that it could not prepare it has not forgotten.
    assert prepare or f"it was {statement.split(maxsplit=1)[0]}" in str(caught.value)
    assert "it was )" not in str(caught.value)
    with transaction(), postgres_source.connect() as connection:  # the next user's is whole
        connection.execute(INSERT, (2, "w"))
    assert databases.rows("one", "select id from t order by 1") == [(1,), (2,)]


def test_what_is_never_sent_begins_nothing(postgres_source: DataSource, databases: Databases) -> None:
    with transaction(), postgres_source.connect() as connection:
        for wrong in ((INSERT, (1,)), (INSERT, (1, object())), (INSERT, {"no": 1})):
            with pytest.raises((psycopg.ProgrammingError, TypeError)):
                connection.execute(*wrong)
            assert connection.info.transaction_status is IDLE
        connection.execute(INSERT, (1, "v"))
    assert databases.rows("one", "select id from t") == [(1,)]


def test_a_begin_that_is_refused(postgres_source: DataSource, databases: Databases) -> None:
    """Nothing of the statement executes, prepared or not, and the next one begins again."""
    with transaction(), postgres_source.connect() as connection:
        raw = connection.current_enlistment().raw
        for prepare in (None, True):
            raw.beginning = "begin transaction of another kind"
            with pytest.raises(psycopg.errors.SyntaxError, match="of"):
                connection.execute(INSERT, (1, "v"), prepare=prepare)
            assert connection.info.transaction_status is IDLE
        raw.beginning = ""
        connection.execute(INSERT, (2, "v"))
    assert databases.rows("one", "select id from t") == [(2,)]


@pytest.mark.parametrize("prepare", [None, True])
def test_a_statement_that_libpq_does_not_take(
    postgres_source: DataSource, databases: Databases, prepare: bool | None
) -> None:
    """As psycopg's, its error leaves a transaction that goes on."""
    many = 65536
    statement = f"select 1 where 1 in ({', '.join(['%s'] * many)})"
    with transaction(), postgres_source.connect() as connection:
        with pytest.raises(psycopg.OperationalError, match="number of parameters"):
            connection.execute(statement, [1] * many, prepare=prepare)
        assert connection.info.transaction_status is INTRANS
        connection.execute(INSERT, (1, "v"))
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = "begin transaction of another kind"
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute(statement, [1] * many, prepare=prepare)
        connection.current_enlistment().raw.beginning = ""
    assert databases.rows("one", "select id from t") == [(1,)]


@pytest.mark.parametrize("end", ["commit", "rollback", "listen x; commit"])
def test_the_statement_s_own_commit_before_its_error(
    postgres_source: DataSource, databases: Databases, end: str
) -> None:
    """It is never told as a transaction of which nothing was done."""
    with pytest.raises(HeuristicCommit), transaction() as tx, postgres_source.connect() as connection:
        with pytest.raises(psycopg.ProgrammingError, match="has ended its part"):
            connection.execute(f"insert into t values (1, 'v'); {end}; select 1/0")
        assert tx.status is Status.MARKED_ROLLBACK
    assert databases.rows("one", "select id from t") == ([] if end == "rollback" else [(1,)])
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select pg_listening_channels()").fetchall() == []


def test_only_a_begin_that_is_refused(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = "begin transaction of another kind"
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("select 1")
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = ""
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "first",
    [
        lambda connection: connection.execute("copy t from '/nowhere'"),
        lambda connection: connection.execute("copy t to stdout"),
        lambda connection: connection.execute("select $1"),
    ],
    ids=["copy from a file", "copy to the client", "a dollar"],
)
def test_what_libpq_would_not_take_there(postgres_source: DataSource, first: First) -> None:
    with rolled_back(), postgres_source.connect() as connection:
        with pytest.raises(psycopg.Error):
            first(connection)
        assert connection.info.transaction_status is not IDLE
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def copy(connection: Any) -> None:
    with connection.cursor().copy("copy t from stdin") as rows:
        rows.write_row((1, "v"))


def block(connection: Any) -> None:
    with connection.transaction():
        connection.execute(INSERT, (1, "v"))


def pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute(INSERT, (1, "v"))


def server_cursor(connection: Any) -> None:
    with connection.cursor("c") as cursor:
        cursor.execute("select 1 as id")
        assert cursor.fetchall() == [(1,)]
    connection.execute(INSERT, (1, "v"))


def client_cursor(connection: Any) -> None:
    connection.cursor_factory = psycopg.ClientCursor
    connection.execute(INSERT, (1, "v"))


def raw_cursor(connection: Any) -> None:
    connection.cursor_factory = psycopg.RawCursor
    connection.execute("insert into t values ($1, $2)", (1, "v"))
    connection.cursor_factory = psycopg.Cursor


@pytest.mark.parametrize(
    "first",
    [
        lambda connection: connection.cursor().executemany(INSERT, [(1, "v")]),
        lambda connection: list(connection.cursor().stream("insert into t values (1, 'v') returning id")),
        lambda connection: connection.execute(sql.SQL(INSERT), (1, "v")),
        lambda connection: connection.execute("insert into t values (1, 'v'); select 1"),
        lambda connection: connection.execute("insert into t values (1, $$v$$)"),
        lambda connection: connection.execute("create table if not exists t (id integer); " + INSERT % (1, "'v'")),
        lambda connection: connection.execute("insert into t values (1, 'v') returning id", binary=True),
        copy, block, pipeline, server_cursor, client_cursor, raw_cursor,
    ],
)  # fmt: skip
def test_other_beginnings(postgres_source: DataSource, databases: Databases, first: First) -> None:
    with transaction(), postgres_source.connect() as connection:
        first(connection)
        assert connection.info.transaction_status is INTRANS
        connection.execute(INSERT, (2, "w"))
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]


def test_a_session_s_lock_is_noted(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.execute("select pg_advisory_lock(%s)", (7,), prepare=True)
    with transaction(), postgres_source.connect() as connection:
        mine = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert connection.execute(mine).fetchone() == (0,)


def test_the_transaction_s_own_modes(postgres_source: DataSource) -> None:
    with transaction(isolation="serializable"), postgres_source.connect() as connection:
        assert connection.execute("select current_setting('transaction_isolation')").fetchone() == ("serializable",)
    with transaction(), postgres_source.connect() as connection:
        connection.read_only = True
        assert connection.execute("select current_setting('transaction_read_only')").fetchone() == ("on",)


def test_what_comes_between(postgres_source: DataSource, databases: Databases) -> None:
    """A label, and the savepoint of a connection that joins, have their BEGIN before them, and there is no other."""
    url, password = databases.url("one"), databases.server.password
    notices: list[str | None] = []
    with DataSource(name="two", driver="psycopg", url=url, password=password, managed_commit="join") as joining:
        for datasource in (postgres_source, joining):
            with transaction() as tx, datasource.connect() as connection:
                tx.label = "" if datasource is joining else "a job"
                connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
                (name,) = connection.execute("select current_setting('application_name')").fetchone()
                assert name == tx.label
    assert notices == []


def test_a_notification_that_has_come_before(databases: Databases) -> None:
    """As psycopg's, it is told in the first statement: no later one may come. What its handler raises ends nothing."""
    databases.execute("one", "create table t (id integer primary key, v text)")
    url, password = databases.url("one"), databases.server.password
    options: dict[str, Any] = {"url": url, "password": password, "pool_initial_sql": "listen news", "pool_max_size": 1}
    heard: list[str] = []

    def hear(notify: psycopg.Notify) -> None:
        heard.append(notify.payload)
        if notify.payload == "bad":
            raise LookupError

    with DataSource(name="one", driver="psycopg", **options) as datasource:
        for number, (news, size) in enumerate([("good", 1), ("good", 20_000_000), ("bad", 1)]):
            with transaction(), datasource.connect() as connection:
                connection.add_notify_handler(hear)
                databases.rows("one", "select pg_notify('news', %s)", (news,))
                with pytest.raises(LookupError) if news == "bad" else nullcontext():
                    connection.execute(INSERT, (number, "v" * size))
                assert connection.info.transaction_status is INTRANS
    assert heard == ["good", "good", "bad"]
    assert databases.rows("one", "select id from t order by id") == [(0,), (1,), (2,)]


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
