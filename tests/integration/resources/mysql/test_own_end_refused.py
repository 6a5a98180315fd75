"""The program's own SQL that would end its transaction is not sent, over both drivers and in each mode."""

from __future__ import annotations

from contextlib import suppress

import pymysql
import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase, both, work

NOT_SENT = "was not sent: nothing was done, and the transaction goes on"
COMMANDS = (
    "commit",
    "/* x */ COMMIT AND CHAIN",
    "# x\nrollback",
    "-- x\nbegin",
    "begin work",
    "start transaction read only",
    "insert into work values (9, 9); commit",
)


@pytest.mark.parametrize("mode", ["xa", "cmr", "last-resource", "local"])
@pytest.mark.parametrize("command", COMMANDS)
def test_both_databases_commit(managed: BranchDatabase, mode: str, command: str) -> None:
    source, other = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with txpool.transaction():
        work(1, source)
        cursor = source.connect().cursor()
        by_name = "sql" if managed.module is pymysql else "query"
        query = source.connect().query
        ways = (
            cursor.execute,
            query,
            lambda text: query(**{by_name: text}),
            lambda text: cursor.executemany(text, [()]),
        )
        for execute in ways:
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                execute(command)
        with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
            cursor.execute(command.encode())
        cursor.execute("savepoint a")
        work(2, source)
        cursor.execute("rollback to savepoint a")
        work(3, source)
        if mode != "local":
            work(1, other)
    assert both(managed) == [[1, 3], [1] * (mode != "local")]


def test_what_is_not_certain_is_sent(managed: BranchDatabase) -> None:
    """NO_BACKSLASH_ESCAPES would end the literal, and a value may have anything in it."""
    managed.server.execute("create table texts (v varchar(99)) engine=innodb", database="one")
    source = managed.datasource("one", mode="local")
    values = ["\\'; commit; --", "'; commit", "xa end", "begin", "%(;)", "it's; rollback", '"; start transaction']
    with txpool.transaction():
        cursor = source.connect().cursor()
        for value in values:
            cursor.execute("insert into texts values (%s)", [value])
        cursor.execute("insert into texts values ('\\'; commit; --')")
    assert sorted(managed.server.execute("select v from texts", database="one")) == sorted(
        [(value,) for value in [*values, "'; commit; --"]]
    )


@pytest.mark.parametrize("text", ["select '\\', @a := 1 -- '", "select get_lock('\\', 0), 'b\\')"])
def test_a_session_without_backslash_escapes_leaves_nothing_to_the_next(managed: BranchDatabase, text: str) -> None:
    managed.server.execute("set global sql_mode = 'NO_BACKSLASH_ESCAPES'")
    try:
        source = managed.datasource("one", mode="local", pool_max_size=1)
        with source.connect() as connection, suppress(managed.module.Error):
            connection.cursor().execute(text)
        with source.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("select @a, is_used_lock('\\\\'), is_used_lock('\\')")
            assert list(cursor.fetchall()) == [(None, None, None)]
    finally:
        managed.server.execute("set global sql_mode = default")
