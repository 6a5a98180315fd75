"""A simulation of very many: a Spark job's branches, and the coordinators of one log, by what each step costs.

`Costs` are measured by tests/benchmarks/bench_scale.py, and kept in tests/benchmarks/scale.toml. A server has cores,
which run one step at a time each, and a disk, whose flushes are shared by all who wait when one begins. What a job's
tasks and a transaction's databases do is left out: here is only what all of them share. Times are microseconds.
tests/integration/test_scale.py holds the counts against what servers have really done.
"""

from __future__ import annotations

import random
import statistics
import tomllib
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import simpy

#: The measured costs, with the machine that they were measured on.
KEPT = Path(__file__).parents[1] / "benchmarks" / "scale.toml"

Steps = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Costs:
    """What one step costs: microseconds of processor time, unless its name says bytes."""

    #: An append and its fdatasync, by the clock.
    flush: float
    #: The server's, for the statement and the PREPARE of a branch, and for each that is prepared beside it.
    prepare: float
    prepare_beside: float
    #: The server's, for COMMIT PREPARED, and for each that is prepared beside it.
    commit: float
    commit_beside: float
    #: The driver's, for each branch that it ends, the decision's record included.
    end: float
    #: The server's, for a decision in a log in PostgreSQL, and for each that is forgotten with others.
    decide: float
    forget: float
    #: The driver's memory for each adopted branch, and the log's for its part of the decision.
    adopted_bytes: float
    record_bytes: float
    #: The server's shared memory for each slot of max_prepared_transactions.
    slot_bytes: float
    #: The memory that is a log connection's own, in the server.
    connection_bytes: float


def kept_costs(path: Path = KEPT) -> Costs:
    """Those that were measured and kept."""
    return Costs(**tomllib.loads(path.read_text())["costs"])


class Station:
    """So many workers, each of which does one step at a time."""

    def __init__(self, environment: simpy.Environment, workers: int) -> None:
        self._environment = environment
        self._workers = simpy.Resource(environment, workers)
        self._busy = 0.0

    def run(self, microseconds: float) -> Steps:
        with self._workers.request() as worker:
            yield worker
            yield self._environment.timeout(microseconds)
        self._busy += microseconds

    @property
    def used(self) -> float:
        """The share of its time that was used so far."""
        return self._busy / self._workers.capacity / (self._environment.now or 1.0)


class Disk:
    """It flushes again and again while somebody waits."""

    def __init__(self, environment: simpy.Environment, flush: float) -> None:
        self._environment = environment
        self._flush = flush
        self._coming: simpy.Event | None = None
        self._flushing = False
        self.flushes = 0

    def flushed(self) -> Steps:
        """Wait for a flush that begins from now on."""
        if self._coming is None:
            self._coming = self._environment.event()
            if not self._flushing:
                self._flushing = True
                self._environment.process(self._run())
        yield self._coming

    def _run(self) -> Steps:
        while self._coming is not None:
            yield self._environment.timeout(0)  # what is written at this very moment is flushed with it
            done, self._coming = self._coming, None
            yield self._environment.timeout(self._flush)
            self.flushes += 1
            done.succeed()
        self._flushing = False

    @property
    def used(self) -> float:
        return self.flushes * self._flush / (self._environment.now or 1.0)


@dataclass(frozen=True)
class Phase:
    """What a phase of a job took; by station, the share of its time that was used."""

    seconds: float
    round_trips: int
    flushes: int
    used: dict[str, float]

    @property
    def bound(self) -> str:
        """What was used most."""
        return max(self.used, key=lambda name: self.used[name])


@dataclass(frozen=True)
class Job:
    """A Spark job over one database, each partition of which prepares a branch."""

    prepared: Phase
    ended: Phase
    #: Over how many connections the driver has ended the branches.
    connections: int
    record_bytes: float
    driver_bytes: float
    slot_bytes: float


def job(
    costs: Costs, partitions: int, *, tasks: int = 40, connections: int = 8, branches_each: int = 16, cores: int = 2
) -> Job:
    """So many partitions, so many tasks at a time; the driver ends the branches over a few connections."""
    opened = min(connections, 1 + (partitions - 1) // branches_each)
    return Job(
        _prepared(costs, partitions, tasks, cores),
        _ended(costs, partitions, opened, cores),
        opened,
        partitions * costs.record_bytes,
        partitions * costs.adopted_bytes,
        partitions * costs.slot_bytes,
    )


def _prepared(costs: Costs, partitions: int, tasks: int, cores: int) -> Phase:
    environment = simpy.Environment()
    server, disk = Station(environment, cores), Disk(environment, costs.flush)
    begun = iter(range(partitions))
    done = 0

    def task() -> Steps:
        nonlocal done
        for _ in begun:
            yield from server.run(costs.prepare + done * costs.prepare_beside)
            yield from disk.flushed()
            done += 1

    for _ in range(tasks):
        environment.process(task())
    environment.run()
    return _phase(environment, done, disk, {"server": server.used, "disk": disk.used})


def _ended(costs: Costs, branches: int, connections: int, cores: int) -> Phase:
    environment = simpy.Environment()
    server, driver, disk = Station(environment, cores), Station(environment, 1), Disk(environment, costs.flush)
    begun = iter(range(branches))
    left = branches

    def connection() -> Steps:
        nonlocal left
        for _ in begun:
            yield from driver.run(costs.end)
            yield from server.run(costs.commit + left * costs.commit_beside)
            yield from disk.flushed()
            left -= 1

    for _ in range(connections):
        environment.process(connection())
    environment.run()
    used = {"server": server.used, "driver": driver.used, "disk": disk.used}
    return _phase(environment, branches - left, disk, used)


def _phase(environment: simpy.Environment, round_trips: int, disk: Disk, used: dict[str, float]) -> Phase:
    return Phase(environment.now / 1e6, round_trips, disk.flushes, used)


@dataclass
class SharedLog:
    """A log in PostgreSQL, and what its coordinators have met there."""

    coordinators: int
    decisions: int = 0
    round_trips: int = 0
    flushes: int = 0
    #: Rows of decisions: at the end, and the most.
    rows: int = 0
    most_rows: int = 0
    #: By station, the share of its time that was used.
    used: dict[str, float] = field(default_factory=dict)
    #: Microseconds from a decision's sending to its answer.
    waits: list[float] = field(default_factory=list)

    @property
    def connections(self) -> int:
        """Each coordinator has one for its lease, and one to write."""
        return 2 * self.coordinators

    def wait(self, percent: int) -> float:
        return statistics.quantiles(self.waits, n=100)[percent - 1]


def shared_log(
    costs: Costs,
    coordinators: int,
    each: int,
    *,
    rate: float,
    forget_batch: int = 100,
    cores: int = 2,
    seed: int = 0,
) -> SharedLog:
    """So many coordinators make so many decisions each, `rate` a second in all, and forget them in batches."""
    environment = simpy.Environment()
    server, disk = Station(environment, cores), Disk(environment, costs.flush)
    chance = random.Random(seed)
    log = SharedLog(coordinators)

    def written(microseconds: float) -> Steps:
        yield from server.run(microseconds)
        yield from disk.flushed()
        log.round_trips += 1

    def transaction(forgotten: list[int]) -> Steps:
        began = environment.now
        yield from written(costs.decide)
        log.waits.append(environment.now - began)
        log.decisions += 1
        log.rows += 1
        log.most_rows = max(log.rows, log.most_rows)
        forgotten[0] += 1
        if forgotten[0] >= forget_batch:
            count, forgotten[0] = forgotten[0], 0
            yield from written(costs.forget * count)
            log.rows -= count

    def coordinator() -> Steps:
        forgotten = [0]
        for _ in range(each):
            yield environment.timeout(chance.expovariate(rate / coordinators) * 1e6)
            environment.process(transaction(forgotten))

    for _ in range(coordinators):
        environment.process(coordinator())
    environment.run()
    log.flushes = disk.flushes
    log.used = {"server": server.used, "disk": disk.used}
    return log
