"""Measures what `tests.models.scale` is fed with: the costs of branches that very many others are prepared beside."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path

import psycopg

import txpool
from tests.benchmarks.prepared import adopt, prepared_records
from tests.benchmarks.report import Cost
from tests.benchmarks.running import Place, flush_time
from tests.models.scale import Costs
from txpool.config.secrets import Secret
from txpool.demo.server import EmbeddedPostgres
from txpool.log import SqlLog
from txpool.resources.base import BranchRecord, encode
from txpool.xid import make_gtrid, make_xid

#: So many branches are prepared, and then ended. The cost of each grows with their number.
SIZES = (2_000, 6_000, 16_000)
#: Of so few, most of the cost is that of the connections, which is taken off.
_FEW = 200
DECISIONS = 2_000
_COORDINATORS = 20
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Line:
    """A cost that grows with what is beside: alone, and for each beside."""

    alone: float
    beside: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Line:
        """By number of branches, the mean cost of each: on average half of the others are beside it."""
        slope, alone = statistics.linear_regression([count / 2 for count, _ in points], [mean for _, mean in points])
        return cls(alone, slope)


def measure(place: Place) -> Costs:
    """All costs, once."""
    settings = {"max_prepared_transactions": str(max(SIZES) + 100), "max_wal_size": "8GB"}
    with (
        EmbeddedPostgres(databases=["one"], settings=settings) as server,
        EmbeddedPostgres(databases=["one"], settings={"max_prepared_transactions": "100"}) as log_server,
    ):
        found = _branches(server) | _log(log_server)
        found["slot_bytes"] = (_shared_memory(server) - _shared_memory(log_server)) / max(SIZES)
    return Costs(flush=flush_time(place.folder), **{each.name: found[each.name] for each in fields(Costs)[1:]})


def _branches(server: EmbeddedPostgres) -> dict[str, float]:
    dsn = server.dsn("one")
    with psycopg.connect(dsn) as connection:
        connection.execute("create table t (a integer)")
    with txpool.DataSource("one", driver="psycopg", url=server.url("one"), password=server.password) as datasource:
        few = _costs(server, datasource, _FEW)
        all_costs = {size: _costs(server, datasource, size) for size in SIZES}
        each = [
            (size, *(cost.per(size - _FEW, base) for cost, base in zip(found, few, strict=True)))
            for size, found in all_costs.items()
        ]
        transaction = txpool.begin()
        tracemalloc.start()
        records = prepared_records(transaction.gtrid, [datasource], [dsn], SIZES[0])
        adopt(transaction, [datasource], records)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        transaction.rollback()
    prepare = Line.through([(size, cost.server) for size, cost, _ in each])
    commit = Line.through([(size, cost.server) for size, _, cost in each])
    return {
        "prepare": prepare.alone,
        "prepare_beside": prepare.beside,
        "commit": commit.alone,
        "commit_beside": commit.beside,
        "end": statistics.median(cost.user + cost.system for _, _, cost in each),
        "adopted_bytes": used / SIZES[0],
        "record_bytes": len(encode(records)) / SIZES[0],
    }


def _costs(server: EmbeddedPostgres, datasource: txpool.DataSource, branches: int) -> tuple[Cost, Cost]:
    """What it costs to prepare so many, and to end them, in all."""
    transaction = txpool.begin()
    begun = Cost.so_far([server])
    records = prepared_records(transaction.gtrid, [datasource], [server.dsn("one")], branches)
    prepared = Cost.so_far([server])
    adopt(transaction, [datasource], records)
    transaction.commit()
    return prepared.per(1, begun), Cost.so_far([server]).per(1, prepared)


def _log(server: EmbeddedPostgres) -> dict[str, float]:
    with ExitStack() as stack:
        logs = []
        for number in range(_COORDINATORS):
            log = SqlLog(server.url("one"), node=f"n-{number}", create=True, password=Secret(server.password))
            logs.append(stack.enter_context(closing(log)))
        _decide(logs, range(_COORDINATORS))  # each opens its connections
        before = Cost.so_far([server])
        gtrids = _decide(logs, range(_COORDINATORS, _COORDINATORS + DECISIONS))
        middle = Cost.so_far([server])
        for number, gtrid in enumerate(gtrids):
            logs[number % _COORDINATORS].forget(gtrid)
        last = Cost.so_far([server])
        return {
            "decide": middle.per(DECISIONS, before).server,
            "forget": last.per(DECISIONS, middle).server,
            "connection_bytes": _own_memory(server),
        }


def _decide(logs: Sequence[SqlLog], numbers: Iterable[int]) -> list[str]:
    """Record a decision of two branches for each number, in the logs in turn."""
    gtrids = []
    for number in numbers:
        log = logs[number % len(logs)]
        gtrid = make_gtrid(log.node, log.incarnation, number)
        log.record(gtrid, [BranchRecord(make_xid(gtrid, n, "orders"), "orders", "74/5") for n in (1, 2)])
        gtrids.append(gtrid)
    return gtrids


def _own_memory(server: EmbeddedPostgres) -> float:
    """The median of what the server's client processes have for themselves, in bytes."""
    with psycopg.connect(server.dsn("one")) as connection:
        query = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        pids = [pid for (pid,) in connection.execute(query)]
    return statistics.median(_private(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in pids)


def _private(rollup: str) -> float:
    lines = (line.split() for line in rollup.splitlines())
    return sum(float(words[1]) * 1024 for words in lines if words[0] in ("Private_Clean:", "Private_Dirty:"))


def _shared_memory(server: EmbeddedPostgres) -> float:
    with psycopg.connect(server.dsn("one")) as connection:
        (megabytes,) = connection.execute(
            "select setting::int from pg_settings where name = 'shared_memory_size'"
        ).fetchone() or (0,)
    return float(megabytes) * _MEGABYTE
