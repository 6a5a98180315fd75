"""The driver's side of writes by the "txpool" format: commits and aborts what their tasks have prepared or staged.

A write is a part of the transaction that is ambient in the thread which runs the Spark job. If there is none, the write
has a transaction of its own, which begins and ends here.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from txpool.datasource import find
from txpool.errors import OperationalError, ProgrammingError
from txpool.jobs.properties import find_transaction
from txpool.locks import Lock
from txpool.spark.commit.status import attempts_of_stage
from txpool.spark.commit.write import failed_write
from txpool.spark.source.ambient import find_ambient
from txpool.spark.source.partition_writer import PartitionCommitMessage, StreamBatch
from txpool.spark.source.plan import WritePlan
from txpool.spark.source.streaming import offsets
from txpool.spark.source.write_commit import WriteCommit, WriteId, roll_back_prepared
from txpool.spark.table.dialect import dialect_of
from txpool.spark.table.report import WriteReport
from txpool.spark.table.staging import drop_staged, drop_staged_after
from txpool.tm.completion.status import Status
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: The number of ended writes that are remembered, since Spark aborts a write after its commit has failed.
_MAX_REMEMBERED_WRITES = 100
#: The statuses in which a transaction has ended without the write: its own transaction, and the ambient one, which may
#: have committed everything else.
_ENDED_WITHOUT_WRITE = (Status.ROLLED_BACK,), (Status.ROLLED_BACK, Status.COMMITTED)


@dataclass(slots=True)
class _WriteState:
    """Whether a write has ended. The lock is held while it ends, so that it ends only once."""

    lock: Lock = field(default_factory=Lock)
    ended: bool = False
    transaction: Transaction | None = None


class WriteCommitter:
    """Commits and aborts writes by the messages of their tasks. Thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = Lock()
        self._states: OrderedDict[tuple[str, int], _WriteState] = OrderedDict()
        #: The plans of each stream that have not ended.
        self._streams: dict[str, list[WritePlan]] = {}

    def add_plan(self, plan: WritePlan) -> WritePlan:
        """Remember the plan of a stream, and return it: Spark commits or aborts the batch with another plan."""
        if plan.stream:
            with self._lock:
                self._streams.setdefault(plan.stream, []).append(plan)
        return plan

    def commit(self, plan: WritePlan, messages: Sequence[PartitionCommitMessage]) -> WriteReport:
        """Make the write a part of its transaction, and commit the transaction if it is the write's own.

        Errors: as write_table(); after one the transaction can only roll back.
        """
        self._take_plans(plan)
        plan = _as_executed(plan, messages)
        state = self._state_of(plan)
        with state.lock:
            if state.ended:
                raise OperationalError(
                    f"{plan.gtrid}: write {plan.number} has ended already, and does not commit again"
                )
            state.ended = True
            ambient = messages[0].ambient
            try:
                if {(message.ambient, message.digest) for message in messages} != {(ambient, plan.digest)}:
                    raise OperationalError(
                        f"{plan.gtrid}: the tasks of write {plan.number} worked by different plans: the table "
                        f"{plan.target.name} was changed meanwhile. Nothing of the write stays: do it again"
                    )
                write_id = self._write_id(plan, messages[0].batch)
                attempts = attempts_of_stage(self._session.sparkContext, messages[0].stage)
                transaction = find_ambient(ambient) if ambient else _own_transaction(plan)
                state.transaction = transaction
                commit = WriteCommit(transaction, plan, write_id, messages, *attempts)
                report = Context().run(commit.run, own=not ambient)
            except BaseException as error:
                self._clean_up(plan, ambient, state.transaction, error)
                raise
        logger.info("%s: wrote %d rows into %s: %s", report.gtrid, report.rows, report.table, report)
        return report

    def abort(self, plan: WritePlan, messages: Sequence[PartitionCommitMessage | None]) -> None:
        """Remove everything that the write's tasks have left. Spark also calls this after a commit that has failed."""
        received = [message for message in messages if message is not None]
        plans = self._take_plans(plan)
        for executed in [_as_executed(plan, received)] if received or not plans else plans:
            state = self._state_of(executed)
            with state.lock:
                if state.ended:
                    _abort_after_commit(state.transaction, executed)
                    continue
                state.ended = True
                # Without a message from any task, the write may have been a part of any transaction that was open.
                for ambient in {message.ambient for message in received} or {"", *executed.open_gtrids}:
                    error = OperationalError("Spark has aborted the write") if received else None
                    self._clean_up(executed, ambient, None, error)

    def _take_plans(self, plan: WritePlan) -> list[WritePlan]:
        """Remove and return the remembered plans of a stream; its tasks may have worked by any of them."""
        with self._lock:
            return self._streams.pop(plan.stream, []) if plan.stream else []

    def _clean_up(self, plan: WritePlan, ambient: str, own: Transaction | None, error: BaseException | None) -> None:
        """Remove what tasks have left; whatever they leave later is rolled back, too.

        With an `error` the ambient transaction is marked rollback-only. Logs its own errors.
        """
        try:
            Context().run(self._undo, plan, ambient, own, error)
        except Exception as another:
            gtrid = ambient or plan.gtrid
            logger.warning("%s: what write %d has left is left to recovery: %s", gtrid, plan.number, another)

    def _undo(self, plan: WritePlan, ambient: str, own: Transaction | None, error: BaseException | None) -> None:
        source, gtrid = find(plan.datasource), ambient or plan.gtrid
        transaction = find_transaction(ambient) if ambient else own or _own_transaction(plan)
        if transaction is not None and not transaction.ended:
            if ambient and error is not None:
                transaction.set_rollback_only(failed_write(gtrid, plan.number, error))
            with suppress(ProgrammingError):  # the write cannot be a part of this transaction; `error` says so
                # Tasks that have reported nothing may prepare later. Recovery rolls those branches back.
                transaction.adopt((), late_branches=True)
                drop_staged_after(transaction, source, plan.staging(dialect_of(source), gtrid))
            roll_back_prepared(source, gtrid, plan)
            if not ambient:
                transaction.rollback()
        elif transaction is None or transaction.status in _ENDED_WITHOUT_WRITE[bool(ambient)]:
            roll_back_prepared(source, gtrid, plan)
            drop_staged(source, plan.staging(dialect_of(source), gtrid))
            log = get_manager().log
            if log is not None:
                log.finish(gtrid)
        elif ambient and transaction.status in (Status.COMMITTING, Status.ROLLING_BACK):
            transaction.after_completion(lambda _: self._clean_up(plan, ambient, own, error))

    def _write_id(self, plan: WritePlan, batch: StreamBatch | None) -> WriteId | None:
        if batch is None:
            return None if plan.transaction_id is None else WriteId(plan.transaction_id, plan.digest, None)
        batch_offsets = offsets(self._session, batch.query, batch.number)
        digest = hashlib.sha256(f"{plan.digest}\n{batch_offsets}".encode()).hexdigest()
        return WriteId(plan.transaction_id or batch.query, digest, batch.number)

    def _state_of(self, plan: WritePlan) -> _WriteState:
        with self._lock:
            state = self._states.setdefault((plan.gtrid, plan.number), _WriteState())
            for _ in range(len(self._states) - _MAX_REMEMBERED_WRITES):
                self._states.popitem(last=False)
            return state


def _as_executed(plan: WritePlan, messages: Sequence[PartitionCommitMessage]) -> WritePlan:
    """The plan with the gtrid and number that the tasks used: Spark commits a stream's batch with a newly made plan."""
    if not messages:
        return plan
    first = messages[0]
    trace = replace(plan.trace, traceparent="" if first.ambient else first.traceparent)
    return replace(plan, gtrid=first.gtrid, number=first.number, trace=trace)


def _own_transaction(plan: WritePlan) -> Transaction:
    return get_manager().new_transaction(gtrid=plan.gtrid, traceparent=plan.trace.traceparent)


def _abort_after_commit(transaction: Transaction | None, plan: WritePlan) -> None:
    """Spark aborts a write that was committed here. A transaction that is still open is marked rollback-only."""
    if transaction is None:
        return
    if not transaction.ended:
        transaction.set_rollback_only(failed_write(transaction.gtrid, plan.number))
    elif transaction.status in (Status.COMMITTED, Status.IN_DOUBT):
        logger.error(
            "%s is %s, although Spark reports its write as failed: do not repeat the write without a transactionId",
            transaction.gtrid,
            transaction.status.value,
        )
