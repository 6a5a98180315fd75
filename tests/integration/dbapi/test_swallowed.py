"""A statement fails, and the program catches its error: the transaction's end says which statement it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from txpool.datasource import DataSource
from txpool.errors import Error, TransactionRolledBack
from txpool.resources.marked.xids import Xids
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

REASON = (
    'a statement before it has failed, and its error was caught (null value in column "id" of relation "t" violates '
    "not-null constraint; it was insert into t values ($1, '…'))"
)


@pytest.fixture
def sources(databases: Databases) -> Iterator[Callable[..., DataSource]]:
    opened = []

    def source(name: str, mode: str = "xa") -> DataSource:
        databases.execute(name, "create table if not exists t (id integer not null, v text)")
        opened.append(databases.datasource(name, mode=mode))
        return opened[-1]

    yield source
    for each in opened:
        each.close()


def fail(connection: Any) -> None:
    with suppress(Error):
        connection.execute("insert into t values (%s, 'hunter2')", (None,))
    for _ in range(2):  # these fail only because of the first, and say nothing of it
        with suppress(Error):
            connection.execute("select 1")


@pytest.mark.parametrize("mode", ["xa", "cmr"])
def test_alone(sources: Callable[..., DataSource], databases: Databases, mode: str) -> None:
    source = sources("one", mode)
    with pytest.raises(TransactionRolledBack) as caught, transaction():
        source.connect().execute("insert into t values (1, 'a')")
        fail(source.connect())
    assert REASON in everything(caught.value)
    assert databases.rows("one", "select * from t") == []


@pytest.mark.parametrize("mode", ["xa", "cmr"])
def test_with_another_database(sources: Callable[..., DataSource], databases: Databases, mode: str) -> None:
    source, other = sources("one", mode), sources("two")
    if mode == "cmr":
        Xids("one", source.driver_adapter).create()
    with pytest.raises(TransactionRolledBack) as caught, transaction():
        other.connect().execute("insert into t values (1, 'a')")
        fail(source.connect())
    assert REASON in everything(caught.value)
    assert "hunter2" not in everything(caught.value)
    assert databases.rows("two", "select * from t") == []


def test_a_failure_that_a_savepoint_has_undone_is_not_blamed(
    sources: Callable[..., DataSource], databases: Databases
) -> None:
    source = sources("one")
    with pytest.raises(TransactionRolledBack, match=r"caught \(division by zero; it was select 1/0\)"), transaction():
        connection: Any = source.connect()
        with suppress(Error), connection.transaction():
            connection.execute("insert into t values (null, 'a')")
        connection.execute("insert into t values (1, 'a')")
        with suppress(Error):
            connection.cursor().executemany("select 1/0", [()])
    assert databases.rows("one", "select * from t") == []


def test_a_copy_that_failed(sources: Callable[..., DataSource]) -> None:
    source = sources("one")
    with pytest.raises(TransactionRolledBack, match=r"caught \(invalid input syntax for type integer"), transaction():
        connection: Any = source.connect()
        with suppress(Error), connection.cursor().copy("copy t from stdin") as copy:
            copy.write("x\ty\n")


def everything(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts += [str(error), *getattr(error, "__notes__", ())]
        error = error.__cause__
    return "\n".join(texts)
