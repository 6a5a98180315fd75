"""The driver's end of the "txpool" format's writes: what tasks have deposited becomes a part of the transaction.

All of a write's partitions, or none. The transaction is the one that the write's job tells of, or the write's own,
which begins and ends here.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from txpool.datasource import DataSource, find
from txpool.errors import OperationalError, ProgrammingError
from txpool.jobs.properties import find_transaction
from txpool.resources.base import Role
from txpool.spark.commit.attempts import Candidates, PartitionResult, require_all
from txpool.spark.commit.direct_writes import note_direct_write, require_visible
from txpool.spark.commit.listing import list_attempts, roll_back
from txpool.spark.commit.self_deadlock import SelfDeadlockDetector
from txpool.spark.commit.status import attempts_of_stage
from txpool.spark.commit.write import take_over
from txpool.spark.source.ambient import find as find_ambient
from txpool.spark.source.partition_writer import PartitionCommitMessage, StreamBatch
from txpool.spark.source.plan import WritePlan
from txpool.spark.source.streaming import offsets
from txpool.spark.table.copying import DIRECT, STAGED
from txpool.spark.table.idempotent_write import IdempotentWrite
from txpool.spark.table.merge import drop_staged
from txpool.spark.table.report import WriteReport
from txpool.tm.ambient import ambient_variable
from txpool.tm.manager import get_manager
from txpool.tm.outcome import rolled_back
from txpool.tm.status import Status
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: How many ended writes are remembered, since an abort may follow a commit that has failed.
_REMEMBERED = 100
#: How a transaction has ended without the write: its own, and another's, which may have committed all else.
_MAY_FORGET = (Status.ROLLED_BACK,), (Status.ROLLED_BACK, Status.COMMITTED)


@dataclass(slots=True)
class _WriteEnd:
    """A write is ended once; whoever comes meanwhile waits for that."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False
    transaction: Transaction | None = None


class WriteCommitter:
    """Takes in what the tasks of writes have deposited. Thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._write_ends: OrderedDict[tuple[str, int], _WriteEnd] = OrderedDict()
        #: By stream: what was planned, and is not ended.
        self._streams: dict[str, list[WritePlan]] = {}

    def planned(self, plan: WritePlan) -> WritePlan:
        """Keep in mind what a stream's tasks may be at: its commit, and its abort, come with another plan."""
        if plan.stream:
            with self._lock:
                self._streams.setdefault(plan.stream, []).append(plan)
        return plan

    def commit(self, plan: WritePlan, messages: Sequence[PartitionCommitMessage]) -> WriteReport:
        """Make them a part of the transaction, and commit it where it is the write's own.

        Errors: as write_table(); after one the transaction can only roll back.
        """
        self._unplanned(plan)
        plan = _as_worked_by(plan, messages)
        ending = self._write_end(plan)
        with ending.lock:
            if ending.ended:
                raise OperationalError(
                    f"{plan.gtrid}: write {plan.number} has ended already, and does not commit again"
                )
            ending.ended = True
            ambient = messages[0].ambient
            try:
                if {(each.ambient, each.digest) for each in messages} != {(ambient, plan.digest)}:
                    raise OperationalError(
                        f"{plan.gtrid}: the tasks of write {plan.number} do not agree on what they were to do: the "
                        f"table {plan.target.name} was changed meanwhile. Nothing of it stays: do it again"
                    )
                name = self._name(plan, messages[0].batch)
                attempts = attempts_of_stage(self._session.sparkContext, messages[0].stage)
                transaction = find_ambient(ambient) if ambient else _own(plan)
                ending.transaction = transaction
                report = Context().run(_WriteCommit(transaction, plan, name, messages, *attempts).run, own=not ambient)
            except BaseException as error:
                self._clean_up(plan, ambient, ending.transaction, error)
                raise
        logger.info("%s: %d rows are written into %s: %s", report.gtrid, report.rows, report.table, report)
        return report

    def abort(self, plan: WritePlan, messages: Sequence[PartitionCommitMessage | None]) -> None:
        """Nothing of the write shall stay. Comes after a commit, too, that has failed for Spark."""
        there = [deposit for deposit in messages if deposit is not None]
        planned = self._unplanned(plan)
        for worked in [_as_worked_by(plan, there)] if there or not planned else planned:
            ending = self._write_end(worked)
            with ending.lock:
                if ending.ended:
                    _after_commit(ending.transaction, worked)
                    continue
                ending.ended = True
                # Where no task has come to an end, the write may have been a part of any that was open.
                for ambient in {each.ambient for each in there} or {"", *worked.open}:
                    doom = OperationalError("Spark has aborted it") if there else None
                    self._clean_up(worked, ambient, None, doom)

    def _unplanned(self, plan: WritePlan) -> list[WritePlan]:
        """All plans of a stream that its tasks may have been at; they are forgotten."""
        with self._lock:
            return self._streams.pop(plan.stream, []) if plan.stream else []

    def _clean_up(self, plan: WritePlan, ambient: str, own: Transaction | None, error: BaseException | None) -> None:
        """Nothing that tasks have left can win any more, whatever appears later. An `error` dooms what it was for."""
        try:
            Context().run(self._give_up, plan, ambient, own, error)
        except Exception as another:
            whose = ambient or plan.gtrid
            logger.warning("%s: what is left of write %d waits for recovery: %s", whose, plan.number, another)

    def _give_up(self, plan: WritePlan, ambient: str, own: Transaction | None, error: BaseException | None) -> None:
        source, gtrid = find(plan.datasource), ambient or plan.gtrid
        transaction = find_transaction(ambient) if ambient else own or _own(plan)
        if transaction is not None and not transaction.ended:
            if ambient and error is not None:
                transaction.set_rollback_only(_set_rollback_only(transaction, plan, error))
            with suppress(ProgrammingError):  # it cannot be a part of that, which its error says
                _clean_up_after(transaction, source, plan, late_branches=True)
            _roll_back_prepared(source, gtrid, plan)
            if not ambient:
                transaction.rollback()
        elif transaction is None or transaction.status in _MAY_FORGET[bool(ambient)]:
            _roll_back_prepared(source, gtrid, plan)
            drop_staged(source, plan.staging(gtrid))
            log = get_manager().log
            if log is not None:
                log.finish(gtrid)
        elif ambient and transaction.status in (Status.COMMITTING, Status.ROLLING_BACK):
            transaction.after_completion(lambda _: self._clean_up(plan, ambient, own, error))

    def _name(self, plan: WritePlan, batch: StreamBatch | None) -> _WriteName | None:
        if batch is None:
            return None if plan.transaction_id is None else _WriteName(plan.transaction_id, plan.digest, None)
        read = offsets(self._session, batch.query, batch.number)
        digest = hashlib.sha256(f"{plan.digest}\n{read}".encode()).hexdigest()
        return _WriteName(plan.transaction_id or batch.query, digest, batch.number)

    def _write_end(self, plan: WritePlan) -> _WriteEnd:
        with self._lock:
            ending = self._write_ends.setdefault((plan.gtrid, plan.number), _WriteEnd())
            while len(self._write_ends) > _REMEMBERED:
                self._write_ends.popitem(last=False)
            return ending


@dataclass(frozen=True, slots=True)
class _WriteName:
    """What a write is known by when it comes again, and what tells its data from others."""

    name: str
    digest: str
    batch: int | None


@dataclass(frozen=True, slots=True)
class _WriteCommit:
    """One write becomes a part of one transaction, in a context of its own."""

    transaction: Transaction
    plan: WritePlan
    name: _WriteName | None
    messages: Sequence[PartitionCommitMessage]
    #: Task attempts that Spark started, and whether each of them has succeeded.
    attempts: int
    all_succeeded: bool

    def run(self, *, own: bool) -> WriteReport:
        ambient_variable.set(self.transaction)
        try:
            with self.transaction.defer_commit():
                try:
                    report = self._join()
                except BaseException as error:  # before it may commit
                    self.transaction.set_rollback_only(_set_rollback_only(self.transaction, self.plan, error))
                    raise
        except BaseException as error:
            rest = "" if own else "the transaction can only roll back, and "
            what = f"Spark write {self.plan.number} of {self.transaction.gtrid}"
            error.add_note(f"{what} has failed: {rest}nothing of it stays.")
            raise
        if own:
            self.transaction.commit()
        return report

    def _join(self) -> WriteReport:
        plan, gtrid = self.plan, self.transaction.gtrid
        source = find(plan.datasource)
        _clean_up_after(self.transaction, source, plan, late_branches=not self.all_succeeded)
        results = [PartitionResult.unpack(gtrid, deposit.packed) for deposit in self.messages]
        rows, size = (sum(sizes) for sizes in zip(*(result.size for result in results), strict=True))
        report = WriteReport(gtrid, plan.number, plan.target.name, plan.mode, partitions=len(results), rows=rows)
        require_all(gtrid, results, len(self.messages))
        if not self._write(source, results, rows):
            _roll_back_prepared(source, gtrid, plan)
            return report
        if plan.strategy == DIRECT:
            self._adopt(source, [result for result in results if result.records])
        ways = " and ".join(sorted({deposit.strategy for deposit in self.messages}))
        return replace(report, strategy=ways, attempts=self.attempts, bytes=size)

    def _write(self, source: DataSource, results: Sequence[PartitionResult], rows: int) -> bool:
        """The driver's part: move what is staged, record a write that has a name. False where it was done before."""
        require_visible(self.transaction, source, self.plan.target.name, self.plan.mode)
        staged = [result for result, each in zip(results, self.messages, strict=True) if each.strategy == STAGED]
        plan, gtrid, name = self.plan, self.transaction.gtrid, self.name
        if name is None and not staged:
            return True
        with closing(source.connect()) as connection:
            if name is not None:
                replay = IdempotentWrite(source, name.name, plan.target.name, gtrid, plan.mode, name.digest, name.batch)
                earlier = replay.claim(connection)
                if earlier is not None:
                    replay.require_rows(earlier, rows)
                    return False
                replay.finish(connection, len(results), rows)
            if staged:
                with SelfDeadlockDetector(self.transaction, plan.number, [source]):
                    plan.merge(gtrid).run(connection.cursor(), staged)
        return True

    def _adopt(self, source: DataSource, results: Sequence[PartitionResult]) -> None:
        """The branches of the winners become the transaction's; those of other attempts roll back."""
        if results:
            note_direct_write(self.transaction, source, self.plan.target.name)
        listing = list_attempts([source], gtrid=self.transaction.gtrid, write=self.plan.number)
        needed, known = [source.name], {source.name: source}
        take_over(self.transaction, results, listing, needed, candidates=Candidates(), datasources=known)


def _as_worked_by(plan: WritePlan, deposits: Sequence[PartitionCommitMessage]) -> WritePlan:
    """Under the names that tasks had: the commit of a stream's batch comes with a plan made anew."""
    if not deposits:
        return plan
    first = deposits[0]
    trail = replace(plan.trace, traceparent="" if first.ambient else first.traceparent)
    return replace(plan, gtrid=first.gtrid, number=first.number, trace=trail)


def _own(plan: WritePlan) -> Transaction:
    return get_manager().new_transaction(gtrid=plan.gtrid, traceparent=plan.trace.traceparent)


def _roll_back_prepared(source: DataSource, gtrid: str, plan: WritePlan) -> None:
    """Roll back what tasks have prepared: none of it can win any more."""
    if source.role is Role.PREPARED:
        roll_back(list_attempts([source], gtrid=gtrid, write=plan.number).attempts.values(), [source])


def _clean_up_after(transaction: Transaction, source: DataSource, plan: WritePlan, *, late_branches: bool) -> None:
    """With `loose_ends`, tasks that nobody has heard of may come late, and recovery sweeps what they leave."""
    transaction.adopt((), late_branches=late_branches)
    transaction.after_completion(lambda _: drop_staged(source, plan.staging(transaction.gtrid)))


def _after_commit(transaction: Transaction | None, plan: WritePlan) -> None:
    """Spark reports a failure. Where the write is a part of a larger whole, that can only roll back."""
    if transaction is None:
        return
    if not transaction.ended:
        transaction.set_rollback_only(_set_rollback_only(transaction, plan))
    elif transaction.status in (Status.COMMITTED, Status.IN_DOUBT):
        logger.error(
            "%s is %s, though Spark reports its write as failed: do not do it again without a transactionId",
            transaction.gtrid,
            transaction.status.value,
        )


def _set_rollback_only(transaction: Transaction, plan: WritePlan, error: BaseException | None = None) -> BaseException:
    why = "" if error is None else f": {type(error).__name__}: {error}"
    doom = rolled_back(transaction.gtrid, f"its Spark write {plan.number} has failed{why}")
    doom.__cause__ = error
    return doom
