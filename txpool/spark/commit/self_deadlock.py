"""While a write runs: finds out that its transaction waits for itself, which nobody else can.

What tasks have prepared stays locked until the transaction ends, and so does what its driver has written. Where a task
comes to wait for that, or the driver when it moves staged rows, the wait has no end, and to the database these are
sessions that have nothing to do with each other. A task's session is known by its application_name, and the driver's by
its pid. Whoever waits for a stranger, and a stranger who waits for us, is left alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any

from txpool.datasource import DataSource
from txpool.dbapi.enlistment import Enlistment
from txpool.errors import OperationalError
from txpool.resources.postgresql.libpq import Session, value
from txpool.spark.commit.background import BackgroundThread
from txpool.spark.commit.status import TaggedJob
from txpool.tm.transaction import Transaction
from txpool.xid import TaskName, parse

logger = logging.getLogger("txpool")

#: Seconds before each look; a wait counts once two in a row have seen it.
PERIOD = 5.0
#: Seconds for a database to answer.
_PATIENCE = 5.0
#: What a server keeps of an application_name: the end of one that is as long may be missing.
_CUT = 63

# Whoever waits for another's turn at a row waits for what that one waits for: the row is locked for both. What a
# prepared transaction holds has no pid, and is known as its own by the lock on its id.
_QUERY = """
    with locks as materialized (
        select pid, virtualtransaction as who, locktype, relation, transactionid, mode, granted, row(locktype,
            database, relation, page, tuple, virtualxid, transactionid, classid, objid, objsubid) as tag
        from pg_locks
    ), prepared as (
        select who, gid from locks join pg_prepared_xacts on transaction = transactionid
        where locktype = 'transactionid' and granted
    ), wanted as (
        select pid, who, mode, tag from locks where not granted
        union all
        select behind.pid, behind.who, ahead.mode, ahead.tag
        from locks behind
        join locks turn on turn.tag = behind.tag and turn.granted
        join locks ahead on ahead.pid = turn.pid and not ahead.granted
        where behind.locktype = 'tuple' and not behind.granted
    )
    select coalesce(json_agg(json_build_object('pid', w.pid, 'name', a.application_name, 'wanted', w.mode,
        'held', h.mode, 'gid', p.gid, 'tables', tables.names)), '[]')
    from wanted w
    join pg_stat_activity a on a.pid = w.pid and a.datname = current_database()
    join locks h on h.tag = w.tag and h.granted and h.who <> w.who
    left join prepared p on p.who = h.who
    cross join lateral (
        select string_agg(distinct c.relnamespace::regnamespace || '.' || quote_ident(c.relname), ', ') as names
        from locks mine
        join locks its on its.relation = mine.relation and its.who = h.who
        join pg_class c on c.oid = mine.relation and c.relkind in ('r', 'p')
        where mine.who = w.who and 'AccessShareLock' not in (mine.mode, its.mode)
    ) tables
    where (w.pid = {driver} or starts_with(a.application_name, {label}) and octet_length(a.application_name) < {cut})
        and (h.pid = {driver} or starts_with(p.gid, {gtrid}))
"""
#: PostgreSQL's lock modes, from the first to the eighth, each with the numbers of those that it conflicts with.
_CONFLICTS = {
    "AccessShareLock": {8},
    "RowShareLock": {7, 8},
    "RowExclusiveLock": {5, 6, 7, 8},
    "ShareUpdateExclusiveLock": {4, 5, 6, 7, 8},
    "ShareLock": {3, 4, 6, 7, 8},
    "ShareRowExclusiveLock": {3, 4, 5, 6, 7, 8},
    "ExclusiveLock": {2, 3, 4, 5, 6, 7, 8},
    "AccessExclusiveLock": {1, 2, 3, 4, 5, 6, 7, 8},
}
_MODES = {mode: number for number, mode in enumerate(_CONFLICTS, 1)}


@dataclass(frozen=True, slots=True)
class Wait:
    """A session of a transaction that waits for what another part of it holds to the end."""

    source: DataSource
    pid: int
    #: Its task's; None for the driver.
    partition: int | None
    #: The task that has prepared it; None for what the driver has open.
    holder: TaskName | None
    #: What both write to, as far as the database tells.
    tables: str

    def describe(self, gtrid: str, write: int) -> str:
        """For people."""
        who = "the driver" if self.partition is None else f"partition {self.partition}"
        if self.holder is None:
            what = "the driver has written, by itself or for a staged write,"
            remedy = (
                "Have such rows written by tasks or on the driver, and not by both; write_table() with "
                "strategy='staged' does it on the driver"
            )
        elif self.holder.write == write and self.partition is not None:
            what = f"partition {self.holder.partition} has written"
            remedy = (
                "No two partitions may write the same row: have keys distinct, or bring rows of one key into one "
                "partition (df.repartition)"
            )
        else:
            what = f"write {self.holder.write} has written"
            remedy = (
                "Write both as one DataFrame (union) with distinct keys, or the earlier one by write_table() with "
                "strategy='staged', whose rows are there for the later one"
            )
        where = f"{self.source.name} ({self.tables})" if self.tables else self.source.name
        return (
            f"{gtrid}: in Spark write {write} {who} waits in {where} for what {what} in this same transaction, which "
            f"stays locked until its end: that is a wait for ever. All of it rolls back, nothing stays. {remedy}."
        )


class SelfDeadlockDetector(BackgroundThread):
    """One thread for the length of a block. Where that would wait for ever, it ends by OperationalError."""

    def __init__(
        self, transaction: Transaction, write: int, sources: Sequence[DataSource], job: TaggedJob | None = None
    ) -> None:
        """The block waits for the `job`; without one, for the driver's own statements in the transaction."""
        super().__init__("txpool-spark-self-wait")
        self._transaction = transaction
        self._write = write
        self._sources = sources
        self._job = job
        self._found: OperationalError | None = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        cause = error[1]
        if self._found is not None and (cause is None or isinstance(cause, Exception)):
            raise self._found from cause

    def _run(self) -> None:
        seen: list[Wait] = []
        while not self._stopped.wait(PERIOD):
            now = [wait for source in self._sources for wait in self._waits_in(source)]
            for wait in now:
                if wait in seen:
                    self._break(wait)
            seen = now

    def _waits_in(self, source: DataSource) -> list[Wait]:
        """What one database tells; nothing where it does not answer."""
        if self._stopped.is_set():
            return []
        try:
            driver = self._enlistment(source)
            pid = 0 if driver is None else driver.raw.pgconn.backend_pid
            rows = _ask(source, self._transaction.gtrid, self._write, pid)
        except Exception as error:
            logger.info(
                "%s: whether it waits for itself in %s is unknown now: %s", self._transaction.gtrid, source.name, error
            )
            return []
        waits = (_wait(source, row, pid) for row in rows)
        return [wait for wait in waits if wait is not None and self._is_endless(wait)]

    def _is_endless(self, wait: Wait) -> bool:
        """A task that waits for another attempt at its own partition is the monitor's business."""
        if wait.partition is None:
            return True
        own = wait.holder is not None and wait.holder[:2] == (self._write, wait.partition)
        return self._job is not None and not own

    def _break(self, wait: Wait) -> None:
        if self._found is None:
            self._found = OperationalError(wait.describe(self._transaction.gtrid, self._write))
        try:
            if self._job is not None:
                self._job.cancel()
            driver = self._enlistment(wait.source)
            if wait.partition is None and driver is not None:
                driver.mark_unreusable()  # the cancel may come late, and must meet nobody else
                driver.cancel()
        except Exception:
            logger.warning("%s: what waits for ever is not stopped yet", self._transaction.gtrid, exc_info=True)

    def _enlistment(self, source: DataSource) -> Enlistment | None:
        return self._transaction.enlistment_in(source.name)


def _ask(source: DataSource, gtrid: str, write: int, driver: int) -> list[dict[str, Any]]:
    until = monotonic() + _PATIENCE
    with closing(source.driver_adapter.connect(_PATIENCE)) as raw:
        session = Session(raw)
        label, prefix = session.quoted(f"{gtrid}/{write}/"), session.quoted(f"{gtrid}:")
        query = _QUERY.format(driver=driver, label=label, gtrid=prefix, cut=_CUT)
        rows: list[dict[str, Any]] = json.loads(value(session.run(query, until)[0]) or "[]")
        return rows


def _wait(source: DataSource, row: dict[str, Any], driver: int) -> Wait | None:
    """The wait that a row tells of, or None where it is none of ours to the letter."""
    if _MODES.get(row["held"]) not in _CONFLICTS[row["wanted"]]:
        return None
    xid = parse(row["gid"] or "")
    holder = None if xid is None else xid.task
    partition = row["name"].rpartition("/")[2]
    if (row["gid"] and holder is None) or not (partition.isdecimal() or row["pid"] == driver):
        return None
    return Wait(source, row["pid"], None if row["pid"] == driver else int(partition), holder, row["tables"] or "")
