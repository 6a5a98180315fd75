"""Makes one write by the "txpool" format a part of one transaction, or removes what its tasks have left.

Used by the committer, in a context of its own for each write.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from txpool.datasource import DataSource, find
from txpool.resources.base import Role
from txpool.spark.commit.attempts import Candidates, PartitionResult, require_all
from txpool.spark.commit.direct_writes import note_direct_write, require_visible
from txpool.spark.commit.listing import list_attempts, roll_back
from txpool.spark.commit.write import failed_write, take_over
from txpool.spark.source.partition_writer import PartitionCommitMessage
from txpool.spark.source.plan import WritePlan
from txpool.spark.table.dialect import dialect_of
from txpool.spark.table.idempotent_write import IdempotentWrite
from txpool.spark.table.report import WriteReport
from txpool.spark.table.staging import drop_staged_after
from txpool.spark.table.tasks import DIRECT, STAGED
from txpool.tm.ambient import ambient_variable
from txpool.tm.transaction import Transaction


@dataclass(frozen=True, slots=True)
class WriteId:
    """The name under which a write is done once, and the digest of its data."""

    name: str
    digest: str
    batch: int | None


@dataclass(frozen=True, slots=True)
class WriteCommit:
    """The driver's part of one write, within one transaction. Run it in a context of its own."""

    transaction: Transaction
    plan: WritePlan
    write_id: WriteId | None
    messages: Sequence[PartitionCommitMessage]
    #: The number of task attempts that Spark started.
    attempts: int
    #: Whether each of these attempts succeeded.
    all_succeeded: bool

    def run(self, *, own: bool) -> WriteReport:
        """Make the write a part of the transaction; commit the transaction if it is the write's `own`."""
        ambient_variable.set(self.transaction)
        try:
            with self.transaction.defer_commit():
                try:
                    report = self._join()
                except BaseException as error:  # marked before defer_commit() lets the transaction commit
                    self.transaction.set_rollback_only(failed_write(self.transaction.gtrid, self.plan.number, error))
                    raise
        except BaseException as error:
            rest = "" if own else "the transaction can only roll back, and "
            what = f"Spark write {self.plan.number} of {self.transaction.gtrid}"
            error.add_note(f"{what} has failed: {rest}nothing of the write stays.")
            raise
        if own:
            self.transaction.commit()
        return report

    def _join(self) -> WriteReport:
        plan, gtrid = self.plan, self.transaction.gtrid
        source = find(plan.datasource)
        self.transaction.adopt((), late_branches=not self.all_succeeded)
        drop_staged_after(self.transaction, source, plan.staging(dialect_of(source), gtrid))
        results = [PartitionResult.unpack(gtrid, message.packed) for message in self.messages]
        rows, size = (sum(sizes) for sizes in zip(*(result.size for result in results), strict=True))
        report = WriteReport(gtrid, plan.number, plan.target.name, plan.mode, partitions=len(results), rows=rows)
        require_all(gtrid, results, len(self.messages))
        if not self._write(source, results, rows):
            roll_back_prepared(source, gtrid, plan)
            return report
        if plan.strategy == DIRECT:
            self._adopt(source, [result for result in results if result.records])
        strategies = " and ".join(sorted({message.strategy for message in self.messages}))
        return replace(report, strategy=strategies, attempts=self.attempts, bytes=size)

    def _write(self, source: DataSource, results: Sequence[PartitionResult], rows: int) -> bool:
        """Move the staged rows, and record a write that has a name. False if an earlier run has done it."""
        require_visible(self.transaction, source, self.plan.target.name, self.plan.mode)
        staged = [result for result, message in zip(results, self.messages, strict=True) if message.strategy == STAGED]
        plan, gtrid, key = self.plan, self.transaction.gtrid, self.write_id
        if key is None and not staged:
            return True
        with closing(source.connect()) as connection:
            if key is not None:
                write = IdempotentWrite(source, key.name, plan.target.name, gtrid, plan.mode, key.digest, key.batch)
                earlier = write.claim(connection)
                if earlier is not None:
                    write.require_rows(earlier, rows)
                    return False
                write.finish(connection, len(results), rows)
            if staged:
                with dialect_of(source).watch(self.transaction, plan.number, [source]):
                    plan.merge(source, gtrid).run(connection.cursor(), staged)
        return True

    def _adopt(self, source: DataSource, results: Sequence[PartitionResult]) -> None:
        """Adopt the branches of the chosen attempts, and roll back the others."""
        if results:
            note_direct_write(self.transaction, source, self.plan.target.name)
        listing = list_attempts([source], gtrid=self.transaction.gtrid, write=self.plan.number)
        needed, known = [source.name], {source.name: source}
        take_over(self.transaction, results, listing, needed, candidates=Candidates(), datasources=known)


def roll_back_prepared(source: DataSource, gtrid: str, plan: WritePlan) -> None:
    """Roll back all branches that the write's tasks have prepared."""
    if source.role is Role.PREPARED:
        roll_back(list_attempts([source], gtrid=gtrid, write=plan.number).attempts.values(), [source])
