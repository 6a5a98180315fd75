"""Every metric: its names in Prometheus and OpenTelemetry, its labels, and what it measures.

The names for pools are those of OpenTelemetry's semantic conventions. No label has a gtrid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """What a value means."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUM = "sum"  #: a gauge whose values may be added up over processes
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `name` is for Prometheus, `bridged` for OpenTelemetry, `unit` in the spelling of the latter."""

    name: str
    bridged: str
    kind: MetricKind
    unit: str
    doc: str
    labels: tuple[str, ...] = ()


#: The attribute of OpenTelemetry for each label.
ATTRIBUTES = {
    "pool": "db.client.connection.pool.name",
    "state": "db.client.connection.state",
    "datasource": "txpool.datasource",
    "outcome": "txpool.outcome",
    "phase": "txpool.phase",
    "step": "txpool.step",
    "result": "txpool.result",
    "alarm": "txpool.alarm",
}

_POOL = ("pool",)
_DATASOURCE = ("datasource",)

BEGUN = Family(
    "txpool_transactions_begun_total",
    "txpool.transaction.begun",
    MetricKind.COUNTER,
    "{transaction}",
    "Transactions that this process has begun.",
)
ENDED = Family(
    "txpool_transactions_total",
    "txpool.transaction.ended",
    MetricKind.COUNTER,
    "{transaction}",
    "Transactions, as they ended for their caller: committed, rolled back, in doubt, heuristic …, or prepared (a Spark "
    "task's part).",
    ("outcome",),
)
SETTLED = Family(
    "txpool_transactions_settled_total",
    "txpool.transaction.settled",
    MetricKind.COUNTER,
    "{transaction}",
    "Transactions that this process has brought to their end after their caller had gone, as they ended.",
    ("outcome",),
)
UNSETTLED = Family(
    "txpool_transactions_unsettled",
    "txpool.transaction.unsettled",
    MetricKind.SUM,
    "{transaction}",
    "Transactions in doubt that this process still asks for.",
)
PHASE_SECONDS = Family(
    "txpool_commit_phase_seconds",
    "txpool.commit.phase.duration",
    MetricKind.HISTOGRAM,
    "s",
    "How long each phase of ending a transaction took.",
    ("phase",),
)

CONNECTIONS = Family(
    "txpool_connections",
    "db.client.connection.count",
    MetricKind.SUM,
    "{connection}",
    "Connections of a pool that are idle, and used.",
    ("pool", "state"),
)
CONNECTIONS_MAX = Family(
    "txpool_connections_max",
    "db.client.connection.max",
    MetricKind.SUM,
    "{connection}",
    "Connections that a pool opens at most.",
    _POOL,
)
IDLE_MAX = Family(
    "txpool_connections_idle_max",
    "db.client.connection.idle.max",
    MetricKind.SUM,
    "{connection}",
    "Idle connections that a pool keeps at most.",
    _POOL,
)
IDLE_MIN = Family(
    "txpool_connections_idle_min",
    "db.client.connection.idle.min",
    MetricKind.SUM,
    "{connection}",
    "Connections that a pool keeps open.",
    _POOL,
)
PENDING = Family(
    "txpool_connection_pending_requests",
    "db.client.connection.pending_requests",
    MetricKind.SUM,
    "{request}",
    "Threads that wait for a connection.",
    _POOL,
)
TIMEOUTS = Family(
    "txpool_connection_timeouts_total",
    "db.client.connection.timeouts",
    MetricKind.COUNTER,
    "{timeout}",
    "Threads that have waited for a connection in vain.",
    _POOL,
)
WAIT_SECONDS = Family(
    "txpool_connection_wait_seconds",
    "db.client.connection.wait_time",
    MetricKind.HISTOGRAM,
    "s",
    "How long those waited that could not have a connection at once.",
    _POOL,
)
CREATE_SECONDS = Family(
    "txpool_connection_create_seconds",
    "db.client.connection.create_time",
    MetricKind.HISTOGRAM,
    "s",
    "How long it took to open a connection.",
    _POOL,
)
USE_SECONDS = Family(
    "txpool_connection_use_seconds",
    "db.client.connection.use_time",
    MetricKind.HISTOGRAM,
    "s",
    "How long a connection was held.",
    _POOL,
)
TAKES = Family(
    "txpool_connection_takes_total",
    "txpool.connection.takes",
    MetricKind.COUNTER,
    "{take}",
    "How often a connection was taken.",
    _POOL,
)
CREATED = Family(
    "txpool_connections_created_total",
    "txpool.connection.created",
    MetricKind.COUNTER,
    "{connection}",
    "Connections opened.",
    _POOL,
)
CLOSED = Family(
    "txpool_connections_closed_total",
    "txpool.connection.closed",
    MetricKind.COUNTER,
    "{connection}",
    "Connections closed, for whatever reason.",
    _POOL,
)
FAILURES = Family(
    "txpool_connection_failures_total",
    "txpool.connection.failures",
    MetricKind.COUNTER,
    "{failure}",
    "Connections that could not be opened (connect), were found dead (check), or could not be cleaned (reset).",
    ("pool", "step"),
)
LEAKS = Family(
    "txpool_connection_leaks_total",
    "txpool.connection.leaks",
    MetricKind.COUNTER,
    "{connection}",
    "Connections held for longer than pool.leak-threshold.",
    _POOL,
)
LOST = Family(
    "txpool_connections_lost_total",
    "txpool.connection.lost",
    MetricKind.COUNTER,
    "{connection}",
    "Connections that were dropped without being closed.",
    _POOL,
)

SCANS = Family(
    "txpool_recovery_scans_total",
    "txpool.recovery.scans",
    MetricKind.COUNTER,
    "{scan}",
    "Scans that recovery has completed, and that failed as a whole.",
    ("result",),
)
PASSES = Family(
    "txpool_recovery_passes_total",
    "txpool.recovery.passes",
    MetricKind.COUNTER,
    "{pass}",
    "Passes over the datasources: one or two in a scan.",
)
SCAN_SECONDS = Family(
    "txpool_recovery_scan_seconds",
    "txpool.recovery.scan.duration",
    MetricKind.HISTOGRAM,
    "s",
    "How long a scan took, with the back-off between its passes.",
)
HEALTHY = Family(
    "txpool_recovery_healthy",
    "txpool.recovery.healthy",
    MetricKind.GAUGE,
    "1",
    "1 while recovery works, 0 while it does not: what /healthz answers at the same moment.",
)
LAST_SCAN = Family(
    "txpool_recovery_last_scan_timestamp_seconds",
    "txpool.recovery.last_scan",
    MetricKind.GAUGE,
    "s",
    "When the last scan was completed, in seconds since 1970.",
)
RECOVERED = Family(
    "txpool_recovery_branches_total",
    "txpool.recovery.branches",
    MetricKind.COUNTER,
    "{branch}",
    "Branches that recovery has committed, and rolled back.",
    ("outcome",),
)
HEURISTICS = Family(
    "txpool_heuristic_transactions",
    "txpool.recovery.heuristics",
    MetricKind.GAUGE,
    "{transaction}",
    "Transactions with a heuristic outcome that nobody has dismissed.",
)
INDOUBT = Family(
    "txpool_indoubt_branches",
    "txpool.recovery.indoubt",
    MetricKind.GAUGE,
    "{branch}",
    "Prepared branches that the last scan has found, and left; absent if the datasource has not answered.",
    _DATASOURCE,
)
OLDEST = Family(
    "txpool_oldest_indoubt_seconds",
    "txpool.recovery.oldest_indoubt",
    MetricKind.GAUGE,
    "s",
    "How long the oldest of what the last scan has left has been in doubt; 0 if nothing is.",
)
REACHABLE = Family(
    "txpool_recovery_datasource_reachable",
    "txpool.recovery.reachable",
    MetricKind.GAUGE,
    "1",
    "1 if a datasource has answered the last scan, 0 if it has not.",
    _DATASOURCE,
)
SLOTS = Family(
    "txpool_prepared_slots",
    "txpool.recovery.slots",
    MetricKind.GAUGE,
    "{slot}",
    "Prepared transactions that a datasource's server can hold (max_prepared_transactions).",
    _DATASOURCE,
)
SLOTS_TAKEN = Family(
    "txpool_prepared_slots_taken",
    "txpool.recovery.slots_taken",
    MetricKind.GAUGE,
    "{slot}",
    "Prepared transactions that it holds, anybody's.",
    _DATASOURCE,
)
OUTBOX_WAITING = Family(
    "txpool_outbox_waiting",
    "txpool.outbox.waiting",
    MetricKind.GAUGE,
    "{message}",
    "Messages of an outbox or a session's queue that are neither delivered nor parked, as the last scan has found "
    "them; absent if it could not be read.",
    _DATASOURCE,
)
OUTBOX_OLDEST = Family(
    "txpool_outbox_oldest_seconds",
    "txpool.outbox.oldest",
    MetricKind.GAUGE,
    "s",
    "How long the oldest of those messages has waited; 0 if there is none.",
    _DATASOURCE,
)
OUTBOX_PARKED = Family(
    "txpool_outbox_parked",
    "txpool.outbox.parked",
    MetricKind.GAUGE,
    "{message}",
    "Messages of an outbox that are parked: nobody delivers them before `txpool outbox retry`. Or those that the "
    "consumer of a session has parked.",
    _DATASOURCE,
)
ALARMS = Family(
    "txpool_alarms",
    "txpool.recovery.alarms",
    MetricKind.GAUGE,
    "{alarm}",
    "Alarms that stand, of each kind.",
    ("alarm",),
)

FAMILIES = tuple(each for each in list(globals().values()) if isinstance(each, Family))


def reference(families: Iterable[Family] = FAMILIES) -> str:
    """A table of metrics in Markdown."""
    rows = [
        f"| `{each.name}` | {each.kind.value} | {', '.join(each.labels)} | `{each.bridged}` | {each.doc} |"
        for each in families
    ]
    return "\n".join(["| Prometheus | kind | labels | OpenTelemetry | |", "|---|---|---|---|---|", *rows])
