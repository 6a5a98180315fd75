"""A transaction over two databases in an event loop, log included, against one by hand, and against threads.

By hand is what `tasks.py` says. The tables say what is wanted: at least the throughput of by hand; at least 0.95 of
that of as many threads, which the synchronous side serves; and of the loop's worst gap at most by hand's, and 10 ms.
The gap is how late a task was woken that sleeps for a millisecond, again and again, in each round: the median of the
rounds. The loop also waits for a core, of which the servers' processes want more than there are: so its longest turn
stands beside it, in processor time, which is what its own program does to it. By hand has two connections for each
task, and 256 of them in each database; txpool's pools have 32.

    python tests/benchmarks/bench_asyncio.py [--place disk|memory]

Where the machine is busy, what is counted tells more: instructions in user space, by callgrind, and for each
transaction the switches to the loop, the loop's turns, its timers, the sleeps of the process and the log's flushes.

    python tests/benchmarks/bench_asyncio.py --count
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.callgrind import count
from tests.benchmarks.counted import PASSWORD
from tests.benchmarks.report import compare, print_table
from tests.benchmarks.running import TRANSACTIONS, Place, Servers, chosen_places, datasources, place_in, throughput
from tests.benchmarks.tasks import Transaction, by_hand, in_tasks, shared
from tests.benchmarks.transactions import ROWS, with_txpool
from txpool.aio.call import Call
from txpool.tm.manager import get_manager

TASKS = (32, 256)
_ROUNDS = 7
_TICK = 0.001
HAND, OURS, THREADS = "by hand", "txpool, tasks", "txpool, threads"
#: What is wanted: of the throughput of by hand, of that of as many threads, and milliseconds.
OF_HAND, OF_THREADS, LONGEST_GAP = 1.0, 0.95, 10.0
#: By callgrind.
_COUNTED, _COUNTED_ROUNDS = 96, 3


class _Turns:
    """How long a loop's turns are, in processor time, between two looks for what is ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        selector: Any = getattr(loop, "_selector")  # noqa: B009 - only asyncio's own loop has it
        self._select, selector.select = selector.select, self._measured
        self._since: float | None = None
        self._longest = 0.0

    def _measured(self, timeout: float | None) -> Any:
        if self._since is not None:
            self._longest = max(self._longest, time.thread_time() - self._since)
        try:
            return self._select(timeout)
        finally:
            self._since = time.thread_time()

    def longest(self) -> float:
        """In milliseconds, of the turns since this was asked last."""
        longest, self._longest, self._since = self._longest, 0.0, None  # else all until the loop's next turn counts
        return longest * 1e3


async def _throughput(workers: list[Transaction], gaps: list[float]) -> float:
    async def tick() -> None:
        worst = 0.0
        try:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(_TICK)
                worst = max(worst, time.perf_counter() - before - _TICK)
        finally:
            gaps.append(worst * 1e3)

    ticking = asyncio.ensure_future(tick())
    started = time.perf_counter()
    await shared(workers, TRANSACTIONS)
    spent = time.perf_counter() - started
    ticking.cancel()
    await asyncio.wait([ticking])
    return TRANSACTIONS / spent


def _compare(servers: Servers, place: Place) -> None:
    with datasources(servers) as sources, asyncio.Runner() as runner:
        most = max(TASKS)
        threads = [with_txpool(sources, row) for row in range(most)]
        tasks = in_tasks(sources, most)
        databases = [(server.url(name), server.password) for name, server in servers.items()]
        hands = runner.run(by_hand(databases, place.folder, most))
        turns = _Turns(runner.get_loop())
        for number in TASKS:
            gaps: dict[str, list[float]] = defaultdict(list)
            longest: dict[str, list[float]] = defaultdict(list)

            def measured(name: str, workers: list[Transaction], number: int = number) -> float:
                turns.longest()
                found = runner.run(_throughput(workers[:number], gaps[name]))
                longest[name].append(turns.longest())
                return found

            ratios = compare(
                f"one row in each of two databases on two servers; {place}; tasks: {number}",
                {
                    THREADS: partial(throughput, threads, number),
                    HAND: partial(measured, HAND, hands),
                    OURS: partial(measured, OURS, tasks),
                },
                rounds=_ROUNDS,
                unit="transactions/s",
                transactions=TRANSACTIONS,
                servers=[*servers.values()],
            )
            _judge(number, ratios, _medians(gaps), _medians(longest))


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    """Of the rounds behind the first, which opens connections."""
    return {name: statistics.median(each[1:]) for name, each in found.items()}


def _judge(number: int, ratios: dict[str, float], gaps: dict[str, float], turns: dict[str, float]) -> None:
    of_hand, wanted_gap = ratios[OURS] / ratios[HAND], min(gaps[HAND], LONGEST_GAP)
    wanted_turn = min(turns[HAND], LONGEST_GAP)
    rows = [
        ("throughput, of by hand", f"{of_hand:.2f}", f"at least {OF_HAND:.2f}", of_hand >= OF_HAND),
        ("of threads", f"{ratios[OURS]:.2f}", f"at least {OF_THREADS:.2f}", ratios[OURS] >= OF_THREADS),
        ("the loop's worst gap, ms", f"{gaps[OURS]:.1f}", f"at most {wanted_gap:.1f}", gaps[OURS] <= wanted_gap),
        ("its longest turn, ms CPU", f"{turns[OURS]:.1f}", f"at most {wanted_turn:.1f}", turns[OURS] <= wanted_turn),
    ]
    headings = ["", "txpool", "wanted", "met"]
    table = [[name, found, wanted, "yes" if met else "no"] for name, found, wanted, met in rows]
    by_hand_has = f"by hand's gap: {gaps[HAND]:.1f} ms, its longest turn: {turns[HAND]:.1f} ms"
    print_table(f"what is wanted; tasks: {number}; {by_hand_has}", headings, table)


def _instructions(servers: Servers, tasks: int) -> list[float]:
    """Of a transaction by hand, and with txpool, in thousands: the medians of the rounds."""
    environment = os.environ | {PASSWORD: servers["one"].password, "PYTHONHASHSEED": "0"}
    urls = [server.url(name) for name, server in servers.items()]

    def measure(variant: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(__file__).with_name("counted_tasks.py"))
            numbers = map(str, (tasks, _COUNTED, _COUNTED_ROUNDS))
            parts = count([program, variant, *numbers, folder, *urls], environment)
        once, twice = parts[1::2], parts[2::2]
        return statistics.median((more - less) / _COUNTED / 1e3 for less, more in zip(once, twice, strict=True))

    with ThreadPoolExecutor(2) as threads:
        return [*threads.map(measure, ("by hand", "txpool"))]


def _counts(sources: list[txpool.DataSource], tasks: int) -> dict[str, float]:
    """What a transaction of txpool's does, so many times."""
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*args, **options)

        return call

    with asyncio.Runner() as runner:
        workers, loop = in_tasks(sources, tasks), runner.get_loop()
        runner.run(_throughput(workers, []))  # warm up
        pause, log = Call._pause, get_manager().log
        selector: Any = getattr(loop, "_selector")  # noqa: B009 - only asyncio's own loop has it
        Call._pause = counting("switches to the loop", pause)  # type: ignore[method-assign]
        selector.select = counting("turns of the loop", selector.select)
        loop.call_at = counting("timers", loop.call_at)  # type: ignore[method-assign]
        flushes, sleeps = getattr(log, "commits", 0), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        try:
            runner.run(_throughput(workers, []))
        finally:
            Call._pause = pause  # type: ignore[method-assign]
        counted["sleeps of the process"] = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - sleeps
        counted["flushes of the log"] = getattr(log, "commits", 0) - flushes
    return {name: number / TRANSACTIONS for name, number in counted.items()}


def _print_counts() -> None:
    with place_in("memory") as place, place.servers(["one", "two"]) as servers:
        hand, ours = _instructions(servers, TASKS[0])
        print_table(
            f"thousands of instructions of a transaction; tasks: {TASKS[0]}",
            ["by hand", "txpool", "ratio"],
            [[f"{hand:,.0f}", f"{ours:,.0f}", f"{ours / hand:.2f}"]],
        )
    with place_in("disk") as place, place.servers(["one"], ["two"]) as servers, datasources(servers) as sources:
        place.configure_log()
        for tasks in TASKS:
            rows = [[name, f"{number:.2f}"] for name, number in _counts(sources, tasks).items()]
            print_table(f"a transaction of txpool's; tasks: {tasks}", ["", "times"], rows)


def main() -> None:
    if sys.argv[1:] == ["--count"]:
        _print_counts()
        return
    for place in chosen_places():
        with place.servers(["one"], ["two"]) as servers:
            _compare(servers, place)


assert max(TASKS) <= ROWS

if __name__ == "__main__":
    main()
