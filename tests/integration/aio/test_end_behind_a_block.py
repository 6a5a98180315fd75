"""The end of a transaction whose connection another task holds, in a COPY, a pipeline or a stream, and does nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from tests.support.outbox import Outbox
from txpool.resources.deadlines import Deadlines


async def hold(two: TwoDatabases, kind: str, begun: asyncio.Event, goes_on: asyncio.Event) -> None:
    """Hold the connection, and go on with it one day."""
    connection = await txpool.aconnect(two.one)
    if kind == "stream":
        async for _ in connection.cursor().stream("select generate_series(1, 100000)"):
            begun.set()
            await goes_on.wait()
    elif kind == "pipeline":
        async with connection.pipeline():
            begun.set()
            await goes_on.wait()
            await connection.execute("insert into t values (-1)")
    else:
        async with connection.cursor().copy("copy t from stdin") as copy:
            begun.set()
            await goes_on.wait()
            await copy.write_row((-1,))


#: What the program hears.
HEARS = {
    "cancelled": asyncio.CancelledError,
    "deadline": txpool.TransactionTimeout,
    "deadline, left by an error": ZeroDivisionError,
}


@pytest.mark.parametrize("kind", ["COPY", "pipeline", "stream", "beside one that blocks"])
def test_it_waits_until_its_deadline_or_its_cancellation(
    two: TwoDatabases, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It rolls back, and tells who has kept it; whoever goes on in the block gets an error."""
    (tmp_path / "outbox").mkdir()
    outbox = Outbox("outbox", tmp_path / "outbox")
    held_by = "COPY" if kind == "beside one that blocks" else kind
    begun: list[txpool.Transaction] = []

    async def main(way: str, value: int) -> None:
        def strike() -> None:
            if way == "cancelled":
                task.cancel()
            else:
                if way == "deadline":
                    begun[-1].expire(600)
                begun[-1].deadlines = Deadlines(monotonic() - 600)

        async def work() -> None:
            holds = asyncio.Event()
            async with txpool.transaction() as transaction:
                begun.append(transaction)
                await two.insert(value)
                if kind == "beside one that blocks":
                    (await transaction.enlist(outbox)).write(b"1")
                copier.append(asyncio.create_task(hold(two, held_by, holds, goes_on), name="the copier"))
                await holds.wait()
                asyncio.get_running_loop().call_soon(strike)  # once this waits
                if way == "deadline, left by an error":
                    raise ZeroDivisionError

        goes_on, copier = asyncio.Event(), list[asyncio.Task[None]]()
        task = asyncio.create_task(work())
        await asyncio.wait([task])
        with pytest.raises(HEARS[way]):
            task.result()
        assert begun[-1].status is txpool.Status.ROLLED_BACK
        (told,) = [each.getMessage() for each in caplog.records if "the copier" in each.getMessage()]
        assert begun[-1].gtrid in told
        assert f"a {held_by} of task" in told
        goes_on.set()
        with pytest.raises(txpool.Error):
            await copier[0]
        assert two.one.statistics().taken == two.two.statistics().taken == 0
        await two.insert(value)

    for value, way in enumerate(HEARS):
        caplog.clear()
        asyncio.run(main(way, value))
        assert (two.held(value), two.prepared) == ((1, 1), [])
    assert two.held(-1) == (0, 0)
    assert not [each for each in outbox.path.iterdir() if each.is_file()]
