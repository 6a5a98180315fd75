"""The simulation of very many: what it must say if only one thing costs anything."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import simpy

from tests.models.scale import Costs, Disk, Steps, job, kept_costs, shared_log

FREE = Costs(*[0.0 for _ in fields(Costs)])


def test_all_who_wait_when_a_flush_begins_share_it() -> None:
    environment = simpy.Environment()
    disk = Disk(environment, 100)

    def at(moment: float) -> Steps:
        yield environment.timeout(moment)
        yield from disk.flushed()

    for moment in (0, 0, 0, 50, 60, 250):  # three; two that come while it runs; one later
        environment.process(at(moment))
    environment.run()
    assert (disk.flushes, environment.now) == (3, 350)


def test_one_connection_waits_for_each_flush_and_eight_share_them() -> None:
    costs = replace(FREE, flush=100.0)
    one, eight = job(costs, 1_000, connections=1), job(costs, 1_000, connections=8)
    assert (one.ended.flushes, one.ended.seconds) == (1_000, pytest.approx(0.1))
    assert 125 <= eight.ended.flushes <= 500
    assert one.ended.bound == eight.ended.bound == "disk"


def test_few_branches_are_worth_few_connections() -> None:
    assert [job(FREE, partitions).connections for partitions in (1, 16, 17, 100, 1_000)] == [1, 1, 2, 7, 8]


def test_what_is_prepared_beside_makes_the_sum_grow_with_the_square() -> None:
    costs = replace(FREE, prepare_beside=1.0, commit_beside=1.0)
    small, large = (job(costs, partitions, tasks=1, cores=1) for partitions in (100, 1_000))
    assert large.prepared.seconds / small.prepared.seconds == pytest.approx(100, rel=0.02)
    assert large.ended.seconds / small.ended.seconds == pytest.approx(100, rel=0.1)
    assert large.ended.bound == "server"


def test_the_driver_bounds_what_nothing_else_does() -> None:
    found = job(replace(FREE, end=10.0, commit=1.0), 1_000)
    assert found.ended.bound == "driver"
    assert found.ended.seconds == pytest.approx(0.01, rel=0.01)


def test_a_coordinator_forgets_in_batches() -> None:
    found = shared_log(FREE, 1, 250, rate=1)
    assert (found.decisions, found.round_trips, found.rows, found.most_rows) == (250, 252, 50, 100)


def test_a_log_that_gets_more_than_it_can_do_keeps_all_waiting() -> None:
    costs = replace(FREE, decide=1_000.0)
    some, too_many = (shared_log(costs, 100, 10, rate=rate, cores=1) for rate in (100, 10_000))
    assert some.used["server"] < 0.2
    assert too_many.used["server"] > 0.95
    assert too_many.wait(50) > 100 * some.wait(50)


def test_the_kept_costs_are_those_of_a_machine() -> None:
    costs = kept_costs()
    assert all(getattr(costs, each.name) > 0 for each in fields(Costs))
    assert max(job(costs, 1_000).ended.used.values()) <= 1.0
