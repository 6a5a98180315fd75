"""The fixtures: a transaction that rolls back after each test, and a PostgreSQL server for the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from txpool.demo.server import EmbeddedPostgres
from txpool.errors import ProgrammingError
from txpool.testing.container import postgres
from txpool.testing.server import variables
from txpool.tm.demarcation.block import transaction
from txpool.tm.observers import observe
from txpool.tm.transaction import Transaction


class _EndOfTest(Exception):
    """Rolls back, and goes no further."""


@pytest.fixture
def txpool_transaction() -> Iterator[Transaction]:
    """A transaction around the test, over every datasource that it uses, which rolls back after it.

    What the test calls joins it, also by `with txpool.transaction()`. Another transaction that begins meanwhile in this
    process, such as one of `requires_new`, would commit for good: it is a ProgrammingError.
    """
    with suppress(_EndOfTest), transaction() as around:

        def refuse(_: Transaction) -> None:
            raise ProgrammingError(
                f"a transaction of its own was to begin in a test that {around.gtrid} rolls back, and would have "
                "committed for good (requires_new, after a suspend(), in another thread): it has not begun. Test this "
                "without the fixture txpool_transaction"
            )

        stop = observe(refuse, "begin")
        try:
            yield around
        finally:
            stop()
        raise _EndOfTest


@pytest.fixture(scope="session")
def txpool_databases() -> tuple[str, ...]:
    """The datasources that are to lead to `txpool_postgres`, each to a database of its name; a suite overrides this."""
    return ("one", "two")


@pytest.fixture(scope="session")
def txpool_postgres(
    txpool_databases: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server for this session alone: `dsn(database)`, `stop()`, `start()`.

    It comes out of a wheel, or in a container if TXPOOL_TEST_DOCKER=1.

    Datasources with the names of its databases lead there, whatever their files say, and the decision log is a new one:
    the environment says so, to this process and to its children.
    """
    log = tmp_path_factory.mktemp("txpool") / "txlog"
    with postgres(txpool_databases) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in variables(server, txpool_databases, log).items():
            patch.setenv(name, value)
        yield server
