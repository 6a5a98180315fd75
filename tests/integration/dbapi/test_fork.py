"""After a fork: a handle of the parent's is of no use in the child, and whatever the child does sends nothing."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.dbapi import forking_in_blocks
from tests.integration.dbapi.table import rows
from tests.support.forking import in_child
from tests.support.repository import ROOT
from tests.support.waiting import until
from txpool.datasource import DataSource
from txpool.errors import InterfaceError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

USES: dict[str, Callable[[Any, Any], object]] = {
    "execute": lambda connection, cursor: cursor.execute("insert into t values (2, 'child')"),
    "executemany": lambda connection, cursor: cursor.executemany("insert into t values (2, 'child')", [()]),
    "a cursor": lambda connection, cursor: connection.cursor(),
    "fetch": lambda connection, cursor: cursor.fetchone(),
    "commit": lambda connection, cursor: connection.commit(),
    "rollback": lambda connection, cursor: connection.rollback(),
    "interrupt": lambda connection, cursor: getattr(connection, "cancel", None) or connection.interrupt(),
    "in a transaction": lambda connection, cursor: _within(connection),
}


def _within(connection: Any) -> None:
    with transaction():
        connection.execute("insert into t values (2, 'child')")


@pytest.mark.parametrize("driver", ["postgres_source", "sqlite_source"])
def test_a_plain_handle_in_the_child(request: pytest.FixtureRequest, driver: str) -> None:
    datasource: DataSource = request.getfixturevalue(driver)
    held = [datasource.connect()]
    cursors = [held[0].cursor(), held[0].cursor()]
    cursors[0].execute("insert into t values (1, 'parent')")
    cursors[1].execute("select id from t")

    def child() -> None:
        for use in USES.values():
            with pytest.raises(InterfaceError, match="is the parent process's"):
                use(held[0], cursors[1])
        cursors[1].close()
        held[0].close()
        held.clear()
        cursors.clear()
        gc.collect()
        if driver == "postgres_source":  # SQLite's one writer is the parent
            with datasource.connect() as own:
                own.execute("insert into t values (3, 'child')")

    in_child(child)
    assert cursors[1].fetchone() == (1,)
    held[0].rollback()
    held[0].close()
    assert rows(datasource) == ([(3, "child")] if driver == "postgres_source" else [])


def test_a_block_and_a_server_cursor_are_left_in_the_child(postgres_source: DataSource) -> None:
    connection: Any = postgres_source.connect()
    cursor = connection.cursor(name="far")
    block = connection.transaction()
    block.__enter__()
    cursor.execute("select generate_series(1, 3)")
    connection.execute("insert into t values (1, 'parent')")

    def child() -> None:
        cursor.close()
        with pytest.raises(InterfaceError):
            block.__exit__(None, None, None)
        with pytest.raises(ZeroDivisionError), connection:
            raise ZeroDivisionError
        assert connection.closed

    in_child(child)
    assert cursor.fetchall() == [(1,), (2,), (3,)]
    cursor.close()
    block.__exit__(None, None, None)
    connection.commit()
    connection.close()
    assert rows(postgres_source) == [(1, "parent")]


def test_an_enlisted_handle_in_the_child(postgres_source: DataSource, databases: Databases) -> None:
    with transaction():
        connection: Any = postgres_source.connect()
        connection.execute("insert into t values (1, 'parent')")

        def child() -> None:
            for use in (lambda: connection.execute("insert into t values (2, 'child')"), connection.commit):
                with pytest.raises(InterfaceError, match="is the parent process's"):
                    use()
            connection.close()

        # Another thread may work in it, and its child's main thread has another name than the one that began.
        with ThreadPoolExecutor(1) as threads:
            threads.submit(in_child, child).result(60)
        in_child(child)
        connection.execute("insert into t values (3, 'parent')")
    assert databases.rows("one", "select id from t order by id") == [(1,), (3,)]


#: How a child ends that leaves its block so: by its error, or as it wants to.
STATUS = {"exception": 1, "sys.exit": 7, "os._exit": 8, "end": 9, "use": 1}


@pytest.mark.costly
@pytest.mark.parametrize("mode", ["plain", "enlisted"])
def test_inside_a_block(databases: Databases, mode: str) -> None:
    """Whatever the child does, the parent's session goes on as if there were no child."""
    databases.execute("one", "create table t (n integer)")
    command = [sys.executable, forking_in_blocks.__file__, databases.url("one"), databases.server.password, mode]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 7 * len(STATUS)
    for name, (status, rows_there) in found.items():
        way = name.rpartition(", ")[2]
        assert rows_there == [1, 2], (name, done.stderr)
        assert status == STATUS[way] or (way == "use" and status == 9), (name, done.stderr)


def test_a_child_leaves_the_parents_session_to_the_parents_death(databases: Databases) -> None:
    """A child that lives on holds no session of a parent that has been killed."""
    program = (
        "import os, sys, time\n"
        "from txpool.datasource import DataSource\n"
        "datasource = DataSource(name='one', driver='psycopg', url=sys.argv[1], password=sys.argv[2])\n"
        "connection = datasource.connect()\n"
        "connection.execute('create table held ()')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    time.sleep(60)\n"
        "print(pid, connection.info.backend_pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, databases.url("one"), databases.server.password]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, session = map(int, parent.stdout.readline().split())
        try:
            parent.kill()
            parent.wait(60)
            gone = "select not exists (select from pg_stat_activity where pid = %s)"
            until(lambda: databases.rows("two", gone, (session,)) == [(True,)])
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("within", ["a transaction", "plain work", "a result"])
def test_a_child_that_exits_leaves_the_parents_file_alone(tmp_path: Path, journal: str, within: str) -> None:
    """Its interpreter clears everything; SQLite would roll back, and remove the parent's journal."""
    command = [sys.executable, "-m", "tests.integration.dbapi.forking_and_exiting", str(tmp_path / "f.db")]
    done = subprocess.run([*command, journal, within], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[(1,)]\n", 0), done.stderr
