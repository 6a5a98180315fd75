"""Ctrl-C in a process whose tasks work, once and twice: it ends, and each transaction is in both databases or none."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.recovery_site import BOTH, Site
from tests.support.waiting import until

_WORK = """
    import asyncio, txpool
    txpool.configure("txpool.properties")

    async def work(first):
        for value in range(first, 1_000_000, 10):
            async with txpool.transaction():
                for name in ("one", "two"):
                    async with await txpool.aconnect(f"{name}.properties") as connection:
                        await connection.execute("insert into t values (%s)", (value,))

    async def main():
        async with asyncio.TaskGroup() as group:
            for first in range(10):
                group.create_task(work(first))

    asyncio.run(main())
"""


@pytest.mark.parametrize("times", [1, 2])
def test_the_process_ends(site: Site, times: int) -> None:
    process = site.interpreter(_WORK)
    try:
        until(lambda: site.counts()["two"] >= 20)
        for _ in range(times):
            os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors, errors
    if times == 1:  # the tasks are cancelled, and finish by themselves
        assert site.databases.prepared() == []
    assert site.command("scan").returncode == 0
    assert site.databases.prepared() == []
    one, two = ({row for (row,) in site.databases.rows(name, "select id from t")} for name in BOTH)
    assert one == two
    assert len(one) >= 20
