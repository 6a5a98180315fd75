"""A connection is taken and given back, struck at every place, and again at every place of what follows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from tests.models.pool import PoolDatabase
from tests.support.places import Striker, at_each_place, strike_each_pair
from txpool.pool import Pool

SIZE = 2


class Interrupt(BaseException):
    pass


def given_back(pool: Pool) -> None:
    pool.give_back(pool.take())


def unclean(pool: Pool) -> None:
    pooled = pool.take()
    pooled.dirty = True
    pool.give_back(pooled)


def discarded(pool: Pool) -> None:
    pool.discard(pool.take(), lost=True)


def dropped(pool: Pool) -> None:
    pool.take()


def every_slot_can_be_taken(pool: Pool) -> None:
    for pooled in [pool.take() for _ in range(SIZE)]:
        pool.give_back(pooled)


@pytest.mark.parametrize("work", [given_back, unclean, discarded, dropped])
def test_no_slot_is_lost(database: PoolDatabase, work: Callable[[Pool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    # An interrupt in a finaliser is shown, and swallowed. pytest would keep what it shows.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with closing(Pool(database, name="orders", max_size=SIZE, max_wait=20)) as pool:
        work(pool)

        def strike(striker: Striker) -> None:
            with suppress(Interrupt), at_each_place(striker):
                work(pool)
            every_slot_can_be_taken(pool)
            assert len(database.live) <= SIZE, striker.places

        places, pairs = strike_each_pair(Interrupt, strike)
    print(f"{places} places, {pairs} pairs")
    assert pairs > 20
    assert not database.live
