"""A connection is the driver's: what it answers, what its session keeps for the next user, a forked child."""

from __future__ import annotations

import importlib
import os
import re
import socket
import threading
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

import txpool
from tests.integration.resources.mysql.branches import SLEEPING, BranchDatabase, both
from tests.support.mysql import MODULES
from tests.support.waiting import until
from txpool.engine import create_engine
from txpool.resources.marked.xids import Xids

#: By the name of a type object, the types of columns that it is to equal.
TYPES = {
    "NUMBER": "tinyint, smallint, mediumint, int, bigint, decimal(5, 2), numeric, float, double, boolean, year",
    "STRING": "char(3), varchar(3), enum('a', 'b'), set('a', 'b')",
    "DATETIME": "date, time, datetime, datetime(6), timestamp null",
    "BINARY": "tinyblob, blob, mediumblob, longblob",
}


def test_each_column_has_the_type_object_of_its_type(managed: BranchDatabase) -> None:
    columns = [(name, each) for name, types in TYPES.items() for each in re.split(r", (?=[a-z])", types)]
    made = ", ".join(f"c{number} {each}" for number, (_, each) in enumerate(columns))
    managed.server.execute(f"create table every_type ({made})", database="one")
    source = managed.datasource()
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("select * from every_type")
        for (name, each), column in zip(columns, cursor.description, strict=True):
            equal = [other for other in (*TYPES, "ROWID") if getattr(txpool, other) == column[1]]
            assert (each, equal) == (each, [name])


def test_the_driver_as_it_is(managed: BranchDatabase) -> None:
    managed.require_pymysql()
    source = managed.datasource()
    with source.connect() as connection:
        assert isinstance(connection, pymysql.connections.Connection)
        assert connection.open
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("select 1 as a, 'x' as b")
            assert cursor.fetchone() == {"a": 1, "b": "x"}
            assert [code == txpool.STRING for _, code, *_ in cursor.description] == [False, True]
        with connection.cursor() as cursor:
            assert cursor.executemany("insert into work values (%s, 0)", [(1,), (2,)]) == 2
            assert cursor.execute("select id from work") == 2
        connection.rollback()
        assert connection.escape("it's") == "'it\\'s'"
        assert connection.get_server_info()
    assert not connection.open
    with pytest.raises(managed.module.InterfaceError):
        connection.cursor()
    assert managed.rows() == []


def test_what_a_session_has_set_is_not_the_next_users(managed: BranchDatabase) -> None:
    source = managed.datasource(pool_max_size=1)
    for statement in ("set @a = 7", "set session sql_mode = ''", "create temporary table tt (i int)", "use two"):
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("select @a, @@sql_mode <> '', database(), @@autocommit")
            assert cursor.fetchall() == ((None, 1, "one", 0),), statement
            with pytest.raises(managed.module.ProgrammingError):
                cursor.execute("select * from tt")
    assert source.statistics().created == 1


def test_a_forked_child_leaves_the_parents_session_alone(managed: BranchDatabase) -> None:
    source = managed.datasource()
    with txpool.transaction():
        connection = source.connect()
        cursor = connection.cursor(importlib.import_module(f"{managed.module.__name__}.cursors").SSCursor)
        cursor.execute("insert into work values (1, 1)")
        cursor.execute("select 1 union select 2")
        assert cursor.fetchone() == (1,)
        pid = os.fork()
        if pid == 0:
            try:
                cursor.fetchone()
            except BaseException:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert cursor.fetchone() == (2,)
        assert cursor.fetchone() is None
    assert managed.rows() == [1]


def test_a_child_that_is_forked_while_a_thread_executes_keeps_no_way_to_the_parents_session(
    managed: BranchDatabase,
) -> None:
    source = managed.datasource()

    def sleep() -> None:
        with txpool.transaction():
            cursor = source.connect().cursor()
            cursor.execute("insert into work values (1, 1)")
            cursor.execute("select sleep(1.5)")

    before = leading_to(managed.server.port)  # other tests' may be open
    executing = threading.Thread(target=sleep)
    executing.start()
    until(lambda: managed.server.execute(SLEEPING))
    (descriptor,) = leading_to(managed.server.port) - before
    pid = os.fork()
    if pid == 0:
        kept = 99
        try:
            kept = descriptor in leading_to(managed.server.port)
        finally:
            os._exit(kept)
    # The frame of the thread that reads keeps PyMySQL's socket, to which nothing is written.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (managed.driver_name == "pymysql")
    executing.join()
    assert managed.rows() == [1]


def leading_to(port: int) -> set[int]:
    """The descriptors of this process's sockets that lead to the port."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(each))) as same:
            if same.getpeername()[1:2] == (port,):
                found.add(int(each))
    return found


def test_a_statement_that_failed_leaves_nothing_for_the_next_user(managed: BranchDatabase) -> None:
    managed.server.execute("insert into work values (1, 1)", database="one")
    source = managed.datasource(pool_max_size=1)
    with source.connect() as connection, pytest.raises(managed.module.IntegrityError):
        connection.cursor().execute("insert into work values (1, 1)")
    with txpool.transaction():  # XA START is refused where a transaction is open
        source.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [1, 2]
    assert source.statistics().created == 1


def test_a_plain_select_leaves_no_snapshot_for_the_next_user(managed: BranchDatabase) -> None:
    """With autocommit off it has begun a transaction, which only the end of its result shows."""
    source = managed.datasource(pool_max_size=1)
    with source.connect() as connection:
        connection.cursor().execute("select * from work")
    with txpool.transaction():  # XA START is refused where a transaction is open
        source.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [2]
    assert source.statistics().created == 1


def test_initial_sql_stays_and_costs_no_reset(managed: BranchDatabase) -> None:
    source = managed.datasource(pool_max_size=1, pool_initial_sql="set @who = 'orders', session sql_mode = ''")
    for statement in ("select 1", "set @who = 'somebody else'", "set session sql_mode = 'ansi'"):
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("select @who = 'orders', @@session.sql_mode")
            assert cursor.fetchall() == ((1, ""),), statement
    assert source.statistics().created == 1


def test_sqlalchemy(managed: BranchDatabase) -> None:
    import sqlalchemy

    engine = create_engine(managed.datasource())
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("insert into work values (1, 1)"))
    with txpool.transaction():
        managed.datasource("two").connect().cursor().execute("insert into work values (1, 1)")
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (2, 2)"))
        with pytest.raises(ZeroDivisionError), engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (3, 3)"))
            raise ZeroDivisionError
    assert both(managed) == [[1, 2], [1]]


def test_sqlalchemy_sets_an_isolation_level(managed: BranchDatabase) -> None:
    """Its dialect commits for that."""
    source = managed.datasource(pool_max_size=1)
    engine = create_engine(source)
    variable = "@@tx_isolation" if managed.server.is_mariadb else "@@transaction_isolation"

    def level(connection: Any) -> Any:
        return connection.exec_driver_sql(f"select {variable}").scalar()

    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        assert level(connection) == "SERIALIZABLE"
    with engine.connect() as connection:
        assert level(connection) == "REPEATABLE-READ"
    with txpool.transaction():
        for each in (engine, create_engine(source, isolation_level="SERIALIZABLE")):
            with pytest.raises(txpool.ProgrammingError, match="isolation_level 'SERIALIZABLE' was not set"):
                each.connect().execution_options(isolation_level="SERIALIZABLE")
        with engine.begin() as connection:
            connection.exec_driver_sql("insert into work values (1, 1)")
    assert managed.rows() == [1]


@pytest.mark.parametrize("mode", ["xa", "cmr", "local"])
def test_a_missing_table_is_no_part_of_a_transaction(managed: BranchDatabase, mode: str) -> None:
    import pandas
    import sqlalchemy

    source = managed.datasource(mode=mode)
    if mode == "cmr":
        Xids("one", source.driver_adapter).create()
    engine = create_engine(source)
    frame = pandas.DataFrame({"id": [1]})
    with txpool.transaction():
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (1, 1)"))
        with pytest.raises(txpool.ProgrammingError, match=r"CREATE TABLE missing .* Create the table before"):
            frame.to_sql("missing", engine, index=False)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (2, 2)"))
    assert managed.rows() == [1, 2]
    frame.to_sql("missing", engine, index=False)
    with txpool.transaction():
        frame.to_sql("missing", engine, index=False, if_exists="append")
    assert len(pandas.read_sql("select * from missing", engine)) == 2


def test_a_statement_tells_what_it_tells_without_txpool(managed: BranchDatabase) -> None:
    """How many rows it has changed, and the new row's number: in the server's answer each has one byte, or more."""
    managed.server.execute(
        "create table mine (id bigint auto_increment primary key, v int) engine=innodb",
        "create table bare (id bigint auto_increment primary key, v int) engine=innodb",
        database="one",
    )
    statements = [
        "insert into {} (v) values (1)",
        f"insert into {{}} (v) values {', '.join(['(2)'] * 250)}",
        f"insert into {{}} (v) values {', '.join(['(3)'] * 251)}",
        "insert into {} (v) values (4)",
        "insert into {} values (70000, 5)",
        "insert into {} values (5000000000, 6)",
        "insert ignore into {} (id, v) values (1, 7)",
        "update {} set v = 8",
        "update {} set v = 8",
        "select id, v from {} order by id",
        "delete from {} where v = 9",
    ]

    def told(cursor: Any, table: str) -> list[object]:
        said: list[object] = []
        for statement in statements:
            returned = cursor.execute(statement.format(table))
            warnings = getattr(cursor, "warning_count", None)  # mysqlclient's cursor has none
            said.append((returned, cursor.rowcount, cursor.lastrowid, warnings, cursor.fetchall()))
        return said

    module = importlib.import_module(MODULES[managed.driver_name])
    server = managed.server
    account = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
    with closing(module.connect(database="one", **account)) as connection:
        expected = told(connection.cursor(), "bare")
    with txpool.transaction(), managed.datasource("one").connect() as connection:
        assert told(connection.cursor(), "mine") == expected
    with managed.datasource("one", name="plain").connect() as connection:
        connection.cursor().execute("delete from mine")
        connection.cursor().execute("alter table mine auto_increment = 1")
        assert told(connection.cursor(), "mine") == expected
