"""Recovery in the same process: as a task of the loop whose other tasks work, and by threads of its own beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import txpool
from tests.integration.waits.waiting import left_by_a_dead_process
from tests.support.recovery_site import BOTH, Site


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """This process is one of the site's node."""
    monkeypatch.chdir(site.folder)
    txpool.configure("txpool.properties")
    yield site
    for source in txpool.datasource.opened():
        source.close()
    txpool.configure(node_name="tests", log_url="memory:")


@pytest.mark.parametrize("way", ["as a task", "by its own threads"])
def test_beside_tasks_that_work(here: Site, way: str) -> None:
    """What a dead process has left is rolled back, and nothing of what these tasks do."""
    left_by_a_dead_process(here, *BOTH)

    async def work(value: int) -> None:
        async with txpool.transaction():
            for name in BOTH:
                async with await txpool.aconnect(f"{name}.properties") as connection:
                    await connection.execute("insert into t values (%s)", (value,))

    rows = 20

    async def recovered() -> None:
        nonlocal rows
        manager = here.manager()
        if way == "by its own threads":
            manager.start()
        try:
            for value in range(100, 1000):  # until it is done
                if not await asyncio.to_thread(here.databases.prepared):
                    return
                if way == "as a task":
                    await asyncio.to_thread(manager.scan)
                await work(value)
                rows += 1
            pytest.fail("what a dead process has left is there still")
        finally:
            await asyncio.to_thread(manager.close)

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(recovered())
            for value in range(20):
                group.create_task(work(value))

    asyncio.run(main())
    assert here.databases.prepared() == []
    counts = here.counts()
    assert counts["one"] == counts["two"] == rows
