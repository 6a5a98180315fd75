"""Detects, while a write runs, that its transaction waits for itself.

What tasks have prepared stays locked until the transaction ends, and so does what its driver has written. If a task
waits for such a lock, or the driver does when it moves staged rows, the wait never ends. The database cannot detect it,
because for the database these are unrelated sessions. The session of a task is known by its application_name, the
driver's by its pid. Waits that involve other transactions are left alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any

from txpool.datasource import DataSource, Source
from txpool.dbapi.enlistment import Enlistment
from txpool.errors import OperationalError
from txpool.resources.postgresql.branches.lock_modes import conflict
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.libpq import value
from txpool.spark.commit.background import BackgroundThread
from txpool.spark.commit.status import TaggedJob
from txpool.tm.transaction import Transaction
from txpool.xid import TaskName, parse

logger = logging.getLogger("txpool")

#: Seconds between two queries; a wait counts once two queries in a row have seen it.
PERIOD = 5.0
_QUERY_TIMEOUT_SECONDS = 5.0
#: Bytes of an application_name that a server keeps; the end of one that has as many may be cut off.
_MAX_APPLICATION_NAME = 63

# A session that queues for a row's tuple lock also waits for what the holder of the tuple lock waits for. The locks of
# a prepared transaction have no pid; the lock on its transaction id shows to which prepared transaction they belong.
_QUERY = qualified(
    """
    with locks as materialized (
        select pid, virtualtransaction as vxid, locktype, relation, transactionid, mode, granted, row(locktype,
            database, relation, page, tuple, virtualxid, transactionid, classid, objid, objsubid) as tag
        from pg_locks
    ), prepared as (
        select vxid, gid from locks join pg_prepared_xacts on transaction = transactionid
        where locktype = 'transactionid' and granted
    ), wanted as (
        select pid, vxid, mode, tag from locks where not granted
        union all
        select queued.pid, queued.vxid, first.mode, first.tag
        from locks queued
        join locks turn on turn.tag = queued.tag and turn.granted
        join locks first on first.pid = turn.pid and not first.granted
        where queued.locktype = 'tuple' and not queued.granted
    )
    select coalesce(json_agg(json_build_object('pid', w.pid, 'name', a.application_name, 'wanted', w.mode,
        'held', h.mode, 'gid', p.gid, 'tables', tables.names)), '[]')
    from wanted w
    join pg_stat_activity a on a.pid = w.pid and a.datname = current_database()
    join locks h on h.tag = w.tag and h.granted and h.vxid <> w.vxid
    left join prepared p on p.vxid = h.vxid
    cross join lateral (
        select string_agg(distinct format('%s.%I', c.relnamespace::regnamespace, c.relname), ', ') as names
        from locks mine
        join locks its on its.relation = mine.relation and its.vxid = h.vxid
        join pg_class c on c.oid = mine.relation and (c.relkind = 'r' or c.relkind = 'p')
        where mine.vxid = w.vxid and mine.mode <> 'AccessShareLock' and its.mode <> 'AccessShareLock'
    ) tables
    where (w.pid = {driver} or starts_with(a.application_name, {label}) and octet_length(a.application_name) < {cut})
        and (h.pid = {driver} or starts_with(p.gid, {gtrid}))
"""
)


@dataclass(frozen=True, slots=True)
class Wait:
    """A session of a transaction that waits for a lock that another part of the transaction holds to the end."""

    source: DataSource
    pid: int
    #: The partition of the waiting task; None for the driver.
    partition: int | None
    #: The task whose prepared branch holds the lock; None for the driver's open branch.
    holder: TaskName | None
    #: The tables that both write to, as far as the database shows; may be empty.
    tables: str

    def describe(self, gtrid: str, write: int) -> str:
        """The text of the error: who waits for what, and what to change."""
        waiter = "the driver" if self.partition is None else f"partition {self.partition}"
        if self.holder is None:
            what = "the driver has written, by itself or for a staged write,"
            remedy = (
                "Write such rows in tasks or on the driver, but not in both; write_table() with strategy='staged' "
                "writes on the driver"
            )
        elif self.holder.write == write and self.partition is not None:
            what = f"partition {self.holder.partition} has written"
            remedy = (
                "No two partitions may write the same row: make keys distinct, or bring rows of one key into one "
                "partition (df.repartition)"
            )
        else:
            what = f"write {self.holder.write} has written"
            remedy = (
                "Write both as one DataFrame (union) with distinct keys, or do the earlier write by write_table() with "
                "strategy='staged', so that the later one can see its rows"
            )
        where = f"{self.source.name} ({self.tables})" if self.tables else self.source.name
        return (
            f"{gtrid}: in Spark write {write} {waiter} waits in {where} for what {what} in this same transaction, "
            "which stays locked until its end: the wait would never end. All of it rolls back, nothing stays. "
            f"{remedy}."
        )


class SelfDeadlockDetector(BackgroundThread):
    """Watches for the length of a block. A block that would wait for ever ends with OperationalError."""

    def __init__(
        self, transaction: Transaction, write: int, sources: Sequence[Source], job: TaggedJob | None = None
    ) -> None:
        """With a `job` the block waits for that job; without one, for the driver's own statements."""
        super().__init__("txpool-spark-self-deadlock")
        self._transaction = transaction
        self._write = write
        # Others do not show who waits for whom under these names: there a lock timeout ends the wait.
        self._sources = [each for each in sources if isinstance(each, DataSource) and each.driver == "psycopg"]
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
                    self._end_wait(wait)
            seen = now

    def _waits_in(self, source: DataSource) -> list[Wait]:
        """The endless waits that one database shows; none if it does not answer."""
        if self._stopped.is_set():
            return []
        try:
            enlistment = self._enlistment(source)
            pid = 0 if enlistment is None else enlistment.raw.pgconn.backend_pid
            rows = _query_waits(source, self._transaction.gtrid, self._write, pid)
        except Exception as error:
            logger.info(
                "%s: whether the transaction waits for itself in %s is not known at the moment: %s",
                self._transaction.gtrid,
                source.name,
                error,
            )
            return []
        waits = (_parse_wait(source, row, pid) for row in rows)
        return [wait for wait in waits if wait is not None and self._is_endless(wait)]

    def _is_endless(self, wait: Wait) -> bool:
        """Whether nothing but this detector ends the wait.

        A task may wait for another attempt of its own partition; AttemptMonitor rolls that attempt back.
        """
        if wait.partition is None:
            return True
        own = wait.holder is not None and wait.holder[:2] == (self._write, wait.partition)
        return self._job is not None and not own

    def _end_wait(self, wait: Wait) -> None:
        if self._found is None:
            self._found = OperationalError(wait.describe(self._transaction.gtrid, self._write))
        try:
            if self._job is not None:
                self._job.cancel()
            enlistment = self._enlistment(wait.source)
            if wait.partition is None and enlistment is not None:
                enlistment.mark_unreusable()  # the cancel may come late, and must not hit a later user of the session
                enlistment.cancel()
        except Exception:
            logger.warning(
                "%s: the statement that waits for its own transaction could not be cancelled",
                self._transaction.gtrid,
                exc_info=True,
            )

    def _enlistment(self, source: DataSource) -> Enlistment | None:
        found = self._transaction.enlistment_in(source.name)
        return found if isinstance(found, Enlistment) else None


def _query_waits(source: DataSource, gtrid: str, write: int, driver: int) -> list[dict[str, Any]]:
    until = monotonic() + _QUERY_TIMEOUT_SECONDS
    with closing(source.driver_adapter.connect(_QUERY_TIMEOUT_SECONDS)) as raw:
        session = raw.session
        label, prefix = session.quoted(f"{gtrid}/{write}/"), session.quoted(f"{gtrid}:")
        query = _QUERY.format(driver=driver, label=label, gtrid=prefix, cut=_MAX_APPLICATION_NAME)
        rows: list[dict[str, Any]] = json.loads(value(session.run(query, until)[0]) or "[]")
        return rows


def _parse_wait(source: DataSource, row: dict[str, Any], driver: int) -> Wait | None:
    """The wait that a row of `_QUERY` describes; None if its modes do not conflict or a name is not one of ours."""
    if not conflict(row["wanted"], row["held"]):
        return None
    xid = parse(row["gid"] or "")
    holder = None if xid is None else xid.task
    partition = row["name"].rpartition("/")[2]
    if (row["gid"] and holder is None) or not (partition.isdecimal() or row["pid"] == driver):
        return None
    return Wait(source, row["pid"], None if row["pid"] == driver else int(partition), holder, row["tables"] or "")
