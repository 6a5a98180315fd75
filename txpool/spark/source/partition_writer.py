"""What a task of the "txpool" format does: it writes one partition, by strategy direct or staged.

A task writes direct if the server has a free prepared slot at that moment, and stages its rows otherwise. Either way
the rows are not visible before the driver has committed, and those of an attempt that it does not choose are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from txpool.datasource import find
from txpool.errors import ConfigurationError, DataError, OperationalError, ProgrammingError, described
from txpool.jobs.properties import TRACEPARENT
from txpool.spark.commit.attempts import refusal
from txpool.spark.commit.slots import NO_SLOT, Reservation, try_reserve
from txpool.spark.source.ambient import gtrid_of_job
from txpool.spark.source.plan import WritePlan, WrittenField
from txpool.spark.table.dialect import TableDialect, TaskCopy, dialect_of
from txpool.spark.table.tasks import DIRECT, STAGED, StagedCopy, measure
from txpool.spark.task.task import PartitionTask
from txpool.spark.task.worker import prepare_worker
from txpool.sql.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection

#: The number of slots that tasks leave free, for the driver's own branch.
_SPARE_SLOTS = 1


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a streaming query."""

    #: The id of the query, which stays the same as long as its checkpoint.
    query: str
    number: int


@dataclass
class PartitionCommitMessage(WriterCommitMessage):
    """The message of a task to the commit of its write, which Spark delivers."""

    #: The digest of the task's plan.
    digest: str
    #: The gtrid and number in the task's plan.
    gtrid: str
    number: int
    #: The gtrid of the driver's ambient transaction; empty if there is none.
    ambient: str
    #: None if the write is not a stream's.
    batch: StreamBatch | None
    #: The id of the task's stage.
    stage: int
    strategy: str
    #: A packed PartitionResult.
    packed: dict[str, Any]
    #: Of the task's trace; empty if it has none.
    traceparent: str = ""


def write_partition(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
    """Write one partition for the job's ambient transaction, or else for the write's own. Called in the task."""
    context = TaskContext.get()
    assert context is not None
    prepare_worker()
    ambient = gtrid_of_job(context)
    batch = None
    if plan.stream:
        if ambient:
            raise ProgrammingError(
                f"this query was started within {ambient}, which it cannot be a part of: each of its batches is a "
                "transaction of its own. Start it outside of any. Nothing was written"
            )
        query, number = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        assert query is not None
        assert number is not None
        batch = StreamBatch(query, int(number))
    elif not ambient and plan.open_gtrids:
        raise ProgrammingError(
            f"{', '.join(plan.open_gtrids)} is open in the driver's process, but not in the thread that writes, so it "
            "is not certain whether this write is a part of it. Begin the transaction in the thread that writes, or "
            "use write_table(), which takes the transaction from its caller. Nothing was written"
        )
    elif ambient and ambient not in plan.open_gtrids:
        raise ProgrammingError(
            f"{ambient}, which the jobs of this thread are a part of, has ended: begin another transaction, or leave "
            "this one by txpool.suspend(). Nothing was written"
        )
    gtrid = ambient or plan.gtrid
    characteristics = plan.characteristics.get(ambient, UNSPECIFIED)
    characteristics.require_writable(gtrid, "the format")
    trace = replace(plan.trace, traceparent=context.getLocalProperty(TRACEPARENT) or "") if ambient else plan.trace
    rows = (_written_columns(batch, plan.fields) for batch in batches)
    task: PartitionTask | StagedCopy
    strategy = plan.strategy
    datasources, _ = plan.datasources.unpack()
    dialect = dialect_of(find(datasources.get(plan.source) or plan.source))
    try:
        with closing(_TaskSlot(plan)) as slot:
            if slot.held:
                strategy = DIRECT
                task = PartitionTask(
                    gtrid,
                    plan.number,
                    None,
                    plan.direct(dialect),
                    plan.datasources,
                    plan.locations,
                    measure,
                    trace,
                    characteristics=characteristics,
                )
            elif plan.strategy_required:
                raise OperationalError(
                    f"{gtrid}: {NO_SLOT} in {plan.source}, and strategy=direct needs one for each task"
                )
            else:
                strategy, table = STAGED, plan.staging(dialect, gtrid)
                prepare = partial(_ensure_staging, plan, dialect, table)
                task = StagedCopy(plan.staged(dialect, table), plan.datasources, gtrid, plan.number, prepare, trace)
            (packed,) = task(context.partitionId(), rows)
    except ConfigurationError as error:
        packed = refusal(error)
    stage = context.stageId()
    return PartitionCommitMessage(
        plan.digest, plan.gtrid, plan.number, ambient, batch, stage, strategy, packed, trace.traceparent
    )


class _TaskSlot:
    """A prepared slot reserved for this task until its branch is prepared; only for a plan with strategy direct."""

    def __init__(self, plan: WritePlan) -> None:
        self._reservation: Reservation | None = None
        if plan.strategy == DIRECT:
            datasources, _ = plan.datasources.unpack()
            reservation = try_reserve(find(datasources.get(plan.source) or plan.source), 1)
            if reservation.spare > _SPARE_SLOTS:
                self._reservation = reservation
            else:
                reservation.release()

    @property
    def held(self) -> bool:
        return self._reservation is not None and self._reservation.enough

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.release()


def _ensure_staging(plan: WritePlan, dialect: TableDialect, table: Any, connection: PEP249Connection) -> TaskCopy:
    """Create the staging table if it does not exist; if it does, check its owner. Returns what writes into it."""
    if not dialect.require_staged(connection.cursor(), table):
        table = dialect.staging(find(plan.source)).ensure(table, dialect.staged_columns(plan.layout))
    return plan.staged(dialect, table)


def _written_columns(batch: pa.RecordBatch, fields: tuple[WrittenField, ...]) -> pa.RecordBatch:
    """The columns of a batch that are written, as the table needs them."""
    columns = [_converted(batch.column(field.index), field) for field in fields]
    return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])


def _converted(array: pa.Array, field: WrittenField) -> Any:
    if not field.as_local:
        return array
    try:
        return pc.local_timestamp(array)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"Arrow does not know the session's time zone {array.type.tz}: set spark.sql.session.timeZone to one such "
            f"as Europe/Paris or +01:00, or use write_table() ({described(error)}). Nothing was written"
        ) from error
