"""Who waits for a connection is served in turn, and everybody as often."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tests.support.waiting import until
from txpool.datasource import DataSource


def test_first_in_first_out_under_load(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    order: list[int] = []
    turn = threading.Lock()
    with ThreadPoolExecutor(40) as threads:
        held = [datasource.connect() for _ in range(2)]

        def work(number: int) -> None:
            connection = datasource.connect()
            with turn:
                order.append(number)
            connection.execute("select pg_sleep(0.01)")
            connection.close()

        for number in range(40):
            threads.submit(work, number)
            until(lambda number=number: datasource.statistics().waiting == number + 1)  # type: ignore[misc]
        for connection in held:
            connection.close()
    # Two are served at a time, so that two neighbours may change places in this list.
    assert all(abs(place - number) <= 2 for place, number in enumerate(order)), order
    assert sorted(order) == list(range(40))


def test_everybody_has_as_many_turns(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    turns: Counter[int] = Counter()
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            with closing(datasource.connect()) as connection:
                connection.execute("select pg_sleep(0.002)")
                turns[number] += 1

    with ThreadPoolExecutor(16) as threads:
        futures = [threads.submit(work, number) for number in range(16)]
        until(lambda: sum(turns.values()) > 600)
        stop.set()
        for future in futures:
            future.result(60)
    assert min(turns.values()) > max(turns.values()) / 2, turns
