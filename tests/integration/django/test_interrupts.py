"""An interrupt at any place of Django's blocks, and of the connection's, tears nothing and loses no later work."""

from __future__ import annotations

import random
from types import CodeType, FrameType
from typing import Any

import pytest
from django.db import connections, transaction
from django.db import transaction as djangos

from tests.crash.evidence import SEED
from tests.integration.django.conftest import Shop
from tests.support.interrupts import at_each_check, codes_of
from tests.support.sampling import FULL
from tests.support.waiting import until
from txpool.django import cursors, wrapper
from txpool.django.transactions import aliases, blocks, demarcation
from txpool.tm.ambient import current
from txpool.tm.demarcation import block


def codes() -> set[CodeType]:
    found: set[CodeType] = set()
    for module in (aliases, blocks, cursors, demarcation, wrapper, djangos, block):
        found |= codes_of(module)
        for each in vars(module).values():
            for value in vars(each).values() if isinstance(each, type) else ():
                if isinstance(value, property):
                    found |= {part.__code__ for part in (value.fget, value.fset) if part is not None}
    return found


class Strike:
    """Raises at the nth place."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self.came = ""

    def __call__(self, frame: FrameType) -> None:
        self._nth -= 1
        if self._nth == 0:
            self.came = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise KeyboardInterrupt


def work(shop: Shop, number: int) -> None:
    with transaction.atomic(), transaction.atomic("two"):
        shop.add(number, "default", "two")
        try:
            with transaction.atomic("ledger"):
                shop.add(-number, "ledger")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass


def is_settled(shop: Shop) -> bool:
    """Nothing is prepared, and no session is in a transaction."""
    rows: Any = shop.rows
    return not rows(
        "one",
        "select 1 from pg_prepared_xacts union all select 1 from pg_stat_activity where xact_start is not null "
        "and pid <> pg_backend_pid() and backend_type = 'client backend'",
    )


@pytest.mark.costly
def test_nothing_is_torn_and_what_follows_commits(shop: Shop) -> None:
    """At one place in nine, which the seed chooses; at all with TXPOOL_CRASH_FULL=1."""
    work(shop, 1_000_000)
    known, step = codes(), 1 if FULL else 9
    nth = random.Random(SEED).randrange(step)
    while True:
        nth += step
        strike = Strike(nth)
        try:
            with at_each_check(known, strike):
                work(shop, nth)
        except KeyboardInterrupt:
            pass
        if not strike.came:
            break
        work(shop, nth + 500_000)
        assert current() is None
        until(lambda: is_settled(shop))
        one, two, ledger = shop.all_numbers
        assert (one, ledger) == (two, []), (nth, strike.came)
        assert nth + 500_000 in one, (nth, strike.came)
        assert not any(connections[alias].in_atomic_block for alias in connections), (nth, strike.came)
    assert nth > 100
