"""What a database that was only read costs beside another one: set apart as a reader, and prepared like any other.

Two reads, and a read beside a write, over two servers from one thread. By hand means: the statements over psycopg, and
a COMMIT to each. Prepared is txpool without the question, so that both prepare and a decision is written: it is what
whoever cannot tell a read from a write must do.

    python tests/benchmarks/bench_reads.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.driver.local import LocalTransaction

TRANSACTIONS = 300
READ = "select a from t where id = 1"
WRITE = "update t set a = a + 1 where id = 1"


@contextmanager
def nobody_asked() -> Iterator[None]:
    """Every branch is taken for one that has written."""
    asked, LocalTransaction.read_only_check = LocalTransaction.read_only_check, lambda *_, **__: None  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        LocalTransaction.read_only_check = asked  # type: ignore[method-assign]


def _milliseconds(transaction: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(TRANSACTIONS):
        transaction()
    return (time.perf_counter() - started) / TRANSACTIONS * 1000


def _compare(
    what: str, second: str, datasources: list[txpool.DataSource], servers: dict[str, EmbeddedPostgres]
) -> None:
    connections = [psycopg.connect(server.dsn(name)) for name, server in servers.items()]
    statements = (READ, second)

    def by_hand() -> None:
        for connection, statement in zip(connections, statements, strict=True):
            connection.execute(statement)
        for connection in reversed(connections):  # the one that has written first
            connection.commit()

    def ours() -> None:
        with txpool.transaction():
            for datasource, statement in zip(datasources, statements, strict=True):
                with datasource.connect() as connection:
                    connection.execute(statement)

    def prepared() -> float:
        with nobody_asked():
            return _milliseconds(ours)

    compare(
        what,
        {"by hand": lambda: _milliseconds(by_hand), "prepared": prepared, "txpool": lambda: _milliseconds(ours)},
        rounds=9,
        unit="ms",
        bound="far below prepared",
        transactions=TRANSACTIONS,
        servers=list(servers.values()),
    )
    for connection in connections:
        connection.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedPostgres(databases=("one",)) as first,
        EmbeddedPostgres(databases=("two",)) as second,
    ):
        txpool.configure(node_name="bench", log_url=f"sqlite:///{scratch}/txlog", log_create=True)
        servers = {"one": first, "two": second}
        datasources = []
        for name, server in servers.items():
            with psycopg.connect(server.dsn(name)) as connection:
                connection.execute("create table t (id integer primary key, a integer)")
                connection.execute("insert into t values (1, 1)")
            datasources.append(
                txpool.DataSource(
                    name=name, driver="psycopg", mode="xa", url=server.url(name), password=server.password
                )
            )
        _compare("two reads", READ, datasources, servers)
        _compare("a read, and a write beside it", WRITE, datasources, servers)
        for datasource in datasources:
            datasource.close()


if __name__ == "__main__":
    main()
