"""The bridge alone: what wakes a call, and when."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("greenlet")

from txpool.aio.bridge import current, run


def call() -> Any:
    found = current()
    assert found is not None
    return found


def test_a_signal_that_comes_before_its_wait_wakes_nobody_later() -> None:
    def early() -> None:
        signal = call().signal()
        released = threading.Thread(target=signal.release)
        released.start()
        released.join()
        assert signal.acquire()

    async def main() -> None:
        for _ in range(3):
            await run(early)
            await asyncio.sleep(0)
            assert await run(lambda: 1) == 1

    asyncio.run(main())
