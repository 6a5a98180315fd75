"""The servers themselves judge the scanner: what it takes for sure ends a transaction there, in each of their modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus
from pymysql.constants import CLIENT

from txpool.sql.dialects import MYSQL, POSTGRESQL

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.support.mysql import MySQLServer

_VALUES = {
    "postgresql": [
        "1", "'a;commit'", "'it''s;'", "'\\'", "'\\''", "'a\\';commit;--'", "E'\\';commit;--'", "e'\\\\'",
        "$$;commit;$$",
        "$a$;$$;commit;$a$", "U&'d\\0061;'", "B'01'", "1 as \"a;commit\"", "1 as \"a\"\"b;\"", "'a'\n';b'", "array[1]",
        "1 as commit$x", "'$$'", "'/*'", "'--'", "case when true then 1 end",
    ],
    "mysql": [
        "1", "'a;commit'", "'it''s;'", "'\\'", "'\\''", "'a\\';commit;#'", "\"\\\";commit;#\"", "`a;commit`",
        "1 as `a``b;`",
        "'\\\\'", "'/*'", "'#'", "'-- '", "5--1", "2*/*;commit*/3", "'a' ';b'", "/*! 1 + */ 1", "if(1, 2, 3)",
        "@a", "@@version",
    ],
}  # fmt: skip
_SPACES = {
    "postgresql": [" ", "\n", "/* ;commit; */", "/* /* */ ;commit; */", "-- ;commit\n", "--;commit\r", "/**/", "/*'*/"],
    "mysql": [" ", "\n", "/* ;commit; */", "-- ;commit\n", "# ;commit\n", "/**/", "/*'*/", "/*+ a */"],
}
_COMMANDS = {
    "postgresql": ["commit", "COMMIT WORK", "end", "rollback", "abort", "commit and chain", "savepoint a"],
    "mysql": ["commit", "rollback", "begin", "start transaction", "savepoint a", "commit and chain"],
}  # fmt: skip


@st.composite
def texts(draw: st.DrawFn, database: str) -> str:
    space, value = st.sampled_from(_SPACES[database]), st.sampled_from(_VALUES[database])
    pieces = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 2)):
            statement = draw(space) + "select" + draw(space) + " " + draw(value) + draw(space)
        else:
            statement = draw(space) + draw(st.sampled_from(_COMMANDS[database])) + draw(space)
        pieces.append(statement)
    return ";".join(pieces)


@pytest.mark.costly
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=texts("postgresql"))
def test_postgresql(databases: Databases, text: str) -> None:
    says = POSTGRESQL.transaction_commands[text]
    ends = []
    for conforming in ("on", "off"):
        with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
            connection.execute(f"set standard_conforming_strings = {conforming}".encode())
            connection.execute("set escape_string_warning = off")
            result = connection.pgconn.exec_(b"begin; savepoint begun")
            connection.pgconn.exec_(text.encode())
            if connection.info.transaction_status is TransactionStatus.INERROR:
                return  # the server could not read it as a whole, or has refused the command
            result = connection.pgconn.exec_(b"rollback to begun")  # of the transaction that was begun
            ends.append(not result.command_status)
    assert all(ends) if says else not all(ends) or "\\" in text, text


MODES = ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES", "MSSQL"]


@pytest.mark.costly
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=texts("mysql"))
def test_mariadb(mariadb: MySQLServer, text: str) -> None:
    says = MYSQL.transaction_commands[text]
    ends = []
    for mode in MODES:
        connection: Any = mariadb.connect("one", client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute(f"set sql_mode = '{mode}'")
            cursor.execute("start transaction")
            cursor.execute("savepoint begun")
            try:
                cursor.execute(text)
                while cursor.nextset():
                    pass
            except pymysql.MySQLError:
                return  # the server could not read it to its end
            try:
                cursor.execute("rollback to begun")
                ends.append(False)
            except pymysql.MySQLError:
                ends.append(True)
    unsure = "\\" in text or "/*!" in text
    assert all(ends) if says else not all(ends) or unsure, text


@pytest.mark.parametrize("text", ["select 'a\\'; commit", "select 1; commit"])
def test_the_judge_tells_them_apart(databases: Databases, text: str) -> None:
    """What one mode takes for a commit, and another does not, is no sure one."""
    ended = {}
    for conforming in ("on", "off"):
        with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
            connection.execute(f"set standard_conforming_strings = {conforming}".encode())
            connection.pgconn.exec_(b"begin")
            connection.pgconn.exec_(text.encode())
            ended[conforming] = connection.info.transaction_status is TransactionStatus.IDLE
    assert ended == {"on": True, "off": "\\" not in text}
    assert bool(POSTGRESQL.transaction_commands[text]) is all(ended.values())


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("MSSQL", "select 1 as [a; commit; b]"),
        ("", "select 5 --\x7f ; commit"),
        ("", "set statement max_statement_time=1 for begin not atomic if 0 then select 1; commit; end if; end"),
    ],
)
def test_mariadb_keeps_its_transaction(mariadb: MySQLServer, mode: str, text: str) -> None:
    connection: Any = mariadb.connect("one", client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"set sql_mode = '{mode}'")
        cursor.execute("start transaction")
        cursor.execute("savepoint begun")
        cursor.execute(text)
        while cursor.nextset():
            pass
        cursor.execute("rollback to begun")  # an error after a COMMIT
    assert MYSQL.transaction_commands[text] == ""
