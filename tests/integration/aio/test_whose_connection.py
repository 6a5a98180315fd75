"""A connection of a transaction in a task that is no part of that: it is refused, whatever its driver."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from txpool.web.asgi import TransactionMiddleware


@pytest.fixture(params=["psycopg", "sqlite3"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[txpool.DataSource]:
    if request.param == "psycopg":
        two: TwoDatabases = request.getfixturevalue("two")
        yield two.one
        return
    with closing(sqlite3.connect(tmp_path / "file.db")) as made:
        made.execute("create table t (a integer primary key)")
    with txpool.DataSource(
        name="file", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/file.db", managed_commit="join"
    ) as source:
        source.xids_table().create()  # type: ignore[attr-defined]
        yield source


def values(source: txpool.DataSource) -> list[int]:
    with closing(source.connect()) as connection:
        return [row[0] for row in connection.cursor().execute("select a from t order by a").fetchall()]


@pytest.mark.parametrize("way", ["taken in it", "taken before it"])
def test_a_task_that_is_not_in_it(source: txpool.DataSource, way: str) -> None:
    """It was started before: its context is not the block's. Its row would be lost with the block's own."""

    async def main() -> None:
        given: asyncio.Queue[Any] = asyncio.Queue()

        async def elsewhere() -> None:
            connection = await given.get()
            with pytest.raises(txpool.ProgrammingError, match="is not ambient here"):
                await connection.cursor().execute("insert into t values (1)")

        task = asyncio.create_task(elsewhere())
        before = await txpool.aconnect(source)
        with pytest.raises(ZeroDivisionError):
            async with txpool.transaction():
                connection = before if way == "taken before it" else await txpool.aconnect(source)
                await connection.cursor().execute("insert into t values (2)")
                await given.put(connection)
                await task
                raise ZeroDivisionError
        await before.close()

    asyncio.run(main())
    assert values(source) == []


def test_a_task_of_another_loop(source: txpool.DataSource) -> None:
    """In a thread of its own, as those of synchronous code are, which may use a connection that they are given."""

    async def main() -> None:
        async with txpool.transaction():
            connection = await txpool.aconnect(source)
            await connection.cursor().execute("insert into t values (2)")
            errors: list[BaseException] = []

            async def elsewhere() -> None:
                try:
                    await connection.cursor().execute("insert into t values (1)")
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
            thread.start()
            await asyncio.to_thread(thread.join)
            assert [type(each) for each in errors] == [txpool.ProgrammingError]

    asyncio.run(main())
    assert values(source) == [2]


def test_what_is_required_behind_a_request(two: TwoDatabases) -> None:
    """Its background tasks are in no transaction, and that is refused if one is required."""
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "mode": "xa", "transaction_required": "strict"}

    async def main(source: txpool.DataSource) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            with pytest.raises(txpool.ProgrammingError, match=r"transaction\.required = strict"):
                await connection.execute("insert into t values (1)")

        async def send(message: Any) -> None:
            pass

        async with await txpool.aconnect(source) as connection:
            scope = {"type": "http", "method": "POST", "path": "/"}
            await TransactionMiddleware(app)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    with txpool.DataSource(name="checked", url=server.url("one"), password=server.password, **options) as source:
        asyncio.run(main(source))
    assert two.held(1) == (0, 0)
