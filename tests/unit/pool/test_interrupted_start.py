"""An interrupt as the thread of maintenance starts: the next one that needs it starts it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from types import FrameType

from tests.models.pool import PoolDatabase
from tests.support.interrupts import at_each_check
from txpool.pool import Pool
from txpool.pool.maintenance import Maintenance


def test_at_each_place(database: PoolDatabase) -> None:
    codes = {Maintenance.wake.__code__, threading.Thread.__init__.__code__, threading.Thread.start.__code__}
    for nth in itertools.count():
        places: Iterator[int] = iter(range(nth + 1))

        def strike(_: FrameType, places: Iterator[int] = places) -> None:
            if next(places, None) == nth:
                raise KeyboardInterrupt

        with closing(Pool(database, name="orders")) as pool:
            with suppress(KeyboardInterrupt), at_each_check(codes, strike):
                pool.resize(1, 4)
            pool.resize(1, 4)
            pool.wait_ready(60)
            assert len(database.live) == 1
        if next(places, None) is not None:
            break
    assert nth > 10
