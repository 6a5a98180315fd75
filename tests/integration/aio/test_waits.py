"""A task that waits for a row which another task of its loop holds is reported, and so is who holds it."""

from __future__ import annotations

import asyncio
import re

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for each in caplog.records if "has executed for" in (text := each.getMessage())]


@pytest.mark.parametrize("ended_by", ["its holder", "its deadline"])
def test_who_holds_the_row(two: TwoDatabases, caplog: pytest.LogCaptureFixture, ended_by: str) -> None:
    """The loop goes on meanwhile. Each of the two ends as it would without the report."""
    two.databases.execute("one", "insert into t values (0)")
    begun: dict[str, str] = {}

    async def update(name: str, value: int, locked: asyncio.Event, until: asyncio.Event, timeout: float | None) -> None:
        async with txpool.transaction(timeout=timeout) as transaction, await txpool.aconnect(two.one) as connection:
            begun[name] = transaction.gtrid
            await connection.execute("update t set a = %s where a >= 0", (value,))
            locked.set()
            await until.wait()

    async def main() -> None:
        locked, both, reported = asyncio.Event(), asyncio.Event(), asyncio.Event()
        timeout = 2.0 if ended_by == "its deadline" else None
        async with asyncio.timeout(60):
            holder = asyncio.create_task(update("holder", 1, locked, reported, None))
            await locked.wait()
            waiter = asyncio.create_task(update("waiter", 2, both, locked, timeout))
            while not reports(caplog):
                await asyncio.sleep(0.01)
            if ended_by == "its deadline":
                with pytest.raises(txpool.TransactionTimeout):
                    await waiter
            reported.set()
            await holder
            await asyncio.wait([waiter])

    txpool.configure(transaction_wait_report="50ms", log_url="memory:", node_name="here")
    asyncio.run(main())
    (report,) = reports(caplog)
    assert re.match(
        rf"one: a statement of {begun['waiter']}, in .* waits for a lock of {begun['holder']}, of this", report
    )
    assert two.held(1 if ended_by == "its deadline" else 2) == (1, 0)
