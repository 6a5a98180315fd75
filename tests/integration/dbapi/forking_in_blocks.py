"""A program that forks inside blocks of its connection: the child leaves each in several ways, then the parent goes on.

python forking_in_blocks.py URL PASSWORD plain|enlisted; prints what the server has then, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg

from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure

WAYS = ("exception", "sys.exit", "os._exit", "end", "use")
# Wide, so that the server sends each row at once, and still executes when the child ends.
SLOWLY = "select repeat('x', 9000), pg_sleep(0.02) from generate_series(1, 30)"


class Fork:
    """Forks once; the parent waits for the child."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.is_child = False
        self.status = 0

    def __call__(self, use: Callable[[], Any]) -> bool:
        """Whether this is the child, and it is to leave the block at once, without an error."""
        pid = os.fork()
        if pid:
            self.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return False
        self.is_child = True
        signal.alarm(30)
        if self.way == "use":
            for _ in range(3):
                try:
                    use()
                except psycopg.Error:
                    self.way = "exception"
                except StopIteration:
                    break
        if self.way == "exception":
            raise ZeroDivisionError
        if self.way == "sys.exit":
            sys.exit(7)
        if self.way == "os._exit":
            os._exit(8)
        return True


def copy_in(connection: Any, fork: Fork) -> None:
    with connection.cursor().copy("copy t (n) from stdin") as copy:
        copy.write_row((1,))
        if fork(lambda: copy.write_row((666,) * 100_000)):
            return
        copy.write_row((2,))


def copy_out(connection: Any, fork: Fork) -> None:
    with connection.cursor().copy(f"copy ({SLOWLY}) to stdout") as copy:
        rows = copy.rows()
        next(rows)
        if fork(copy.read):
            return
        assert sum(1 for _ in rows) == 29
    connection.cursor().executemany("insert into t values (%s)", [(1,), (2,)])


def pipeline(connection: Any, fork: Fork) -> None:
    with connection.pipeline() as running:
        connection.execute("insert into t values (1)")
        if fork(lambda: connection.execute("insert into t values (666)")):
            return
        running.sync()
        connection.execute("insert into t values (2)")


def stream(connection: Any, fork: Fork) -> None:
    rows = connection.cursor().stream(SLOWLY)
    next(rows)
    if fork(lambda: next(rows)):
        return
    assert sum(1 for _ in rows) == 29
    connection.cursor().executemany("insert into t values (%s)", [(1,), (2,)])


def block(connection: Any, fork: Fork) -> None:
    with connection.transaction():
        connection.execute("insert into t values (1)")
        with connection.transaction():
            if fork(lambda: connection.execute("insert into t values (666)")):
                return
            connection.execute("insert into t values (2)")


def server_cursor(connection: Any, fork: Fork) -> None:
    with connection.cursor("far") as cursor:
        cursor.execute("select generate_series(1, 300)")
        next(cursor)
        if fork(lambda: cursor.fetchmany(100)):
            return
        assert sum(1 for _ in cursor) == 299
    connection.cursor().executemany("insert into t values (%s)", [(1,), (2,)])


def notifies(connection: Any, fork: Fork) -> None:
    heard = connection.notifies(timeout=0.01)
    assert next(heard, None) is None
    if fork(lambda: next(connection.notifies(timeout=0.01))):
        return
    connection.cursor().executemany("insert into t values (%s)", [(1,), (2,)])


def two_phase(connection: Any, fork: Fork) -> None:
    connection.tpc_begin("mine")
    connection.execute("insert into t values (1)")
    connection.execute("insert into t values (2)")
    if fork(connection.tpc_prepare):
        return
    connection.tpc_prepare()
    connection.tpc_commit()


def two_phase_prepared(connection: Any, fork: Fork) -> None:
    connection.tpc_begin("mine")
    connection.execute("insert into t values (1)")
    connection.execute("insert into t values (2)")
    connection.tpc_prepare()
    if fork(connection.tpc_rollback):
        return
    connection.tpc_commit()


BOTH = (copy_in, copy_out, pipeline, stream, block, server_cursor, notifies)


@contextmanager
def around(mode: str) -> Iterator[None]:
    with transaction() if mode == "enlisted" else nullcontext():
        yield


def main(url: str, password: str, mode: str) -> None:
    configure(node_name="forks", log_url="memory:")
    datasource = DataSource(name="one", driver="psycopg", url=url, password=password, pool_max_size=2)
    found = {}
    blocks = BOTH if mode == "enlisted" else (*BOTH, two_phase, two_phase_prepared)
    for work in blocks:
        for way in WAYS:
            fork = Fork(way)
            try:
                with around(mode), datasource.connect() as connection:
                    work(connection, fork)
            except Exception:
                if not fork.is_child or way != "end":
                    raise
            if fork.is_child:
                sys.exit(9)
            with datasource.connect() as connection:
                rows = connection.execute("select n from t order by n").fetchall()
                connection.execute("delete from t")
            found[f"{work.__name__}, {way}"] = [fork.status, [n for (n,) in rows]]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
