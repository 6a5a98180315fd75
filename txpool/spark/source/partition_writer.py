"""What a task of the "txpool" format does: one partition's rows, prepared in the table or staged beside it.

Direct where the server has a slot to spare at that moment, else staged: each task sees for itself. Either way the rows
are nobody's before the driver has decided, and an attempt that it does not choose is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from txpool.datasource import find
from txpool.errors import DataError, OperationalError, ProgrammingError
from txpool.jobs.properties import TRACEPARENT
from txpool.resources.postgresql.staging import Staging, StagingTable
from txpool.resources.postgresql.trust import require_locked
from txpool.spark.commit.slots import NO_SLOT, SlotReservation
from txpool.spark.commit.task import PartitionTask
from txpool.spark.commit.worker import prepare_worker
from txpool.spark.source.ambient import gtrid_of_job
from txpool.spark.source.plan import WritePlan, WrittenField
from txpool.spark.table.copying import DIRECT, STAGED, StagedCopy, measure, staged_columns

#: Slots that tasks leave free, for the driver's own branch.
_SPARE = 1


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One of a stream's."""

    #: The query's id, which lives as long as its checkpoint.
    query: str
    number: int


@dataclass
class PartitionCommitMessage(WriterCommitMessage):
    """What a task tells the driver."""

    #: The plan that it has worked by.
    digest: str
    gtrid: str
    number: int
    #: What its job tells of the driver's ambient transaction; empty where it has none.
    ambient: str
    #: Of a stream.
    batch: StreamBatch | None
    #: Of Spark's: the one whose tasks write.
    stage: int
    strategy: str
    #: A packed PartitionResult.
    packed: dict[str, Any]
    #: Its place in a trace, or empty.
    traceparent: str = ""


def write_partition(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> PartitionCommitMessage:
    """Write one partition, for the transaction that the job tells of, or the plan's own."""
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark runs this
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
        assert query is not None  # noqa: S101 - Spark runs this
        assert number is not None  # noqa: S101
        batch = StreamBatch(query, int(number))
    elif not ambient and plan.open:
        raise ProgrammingError(
            f"{', '.join(plan.open)} is open in the driver's process, and not in the thread that writes: whether this "
            "write is a part of it cannot be told. Begin the transaction in the thread that writes, or use "
            "write_table(), which knows. Nothing was written"
        )
    elif ambient and ambient not in plan.open:
        raise ProgrammingError(
            f"{ambient}, which the jobs of this thread tell of, has ended: begin another one, or leave it by "
            "txpool.suspend(). Nothing was written"
        )
    gtrid = ambient or plan.gtrid
    trail = replace(plan.trace, traceparent=context.getLocalProperty(TRACEPARENT) or "") if ambient else plan.trace
    rows = (_as_table_has_them(batch, plan.fields) for batch in batches)
    task: PartitionTask | StagedCopy
    with closing(_TaskSlot(plan)) as slot:
        if slot.held:
            way = DIRECT
            task = PartitionTask(
                gtrid, plan.number, None, plan.direct(), plan.datasources, plan.locations, measure, trail
            )
        elif plan.strategy_required:
            raise OperationalError(f"{gtrid}: {NO_SLOT} in {plan.source}, and strategy=direct wants one for each task")
        else:
            way, prepare = STAGED, partial(_ensure, plan, plan.staging(gtrid))
            task = StagedCopy(plan.staged(gtrid), plan.datasources, gtrid, plan.number, prepare, trail)
        (packed,) = task(context.partitionId(), rows)
    stage = context.stageId()
    return PartitionCommitMessage(
        plan.digest, plan.gtrid, plan.number, ambient, batch, stage, way, packed, trail.traceparent
    )


class _TaskSlot:
    """A prepared transaction's slot, kept for this task until its branch has it."""

    def __init__(self, plan: WritePlan) -> None:
        self._kept: SlotReservation | None = None
        if plan.strategy == DIRECT:
            here, _ = plan.datasources.unpack()
            kept = SlotReservation(here.get(plan.source) or find(plan.source), 1)
            if kept.maximum - kept.taken > _SPARE:
                self._kept = kept
            else:
                kept.release()

    @property
    def held(self) -> bool:
        return self._kept is not None and self._kept.enough

    def close(self) -> None:
        if self._kept is not None:
            self._kept.release()


def _ensure(plan: WritePlan, table: StagingTable, connection: Any) -> None:
    """The first of the tasks creates the staging table; who finds one looks whose it is."""
    cursor = connection.cursor()
    (there,) = cursor.execute("select to_regclass(%s) is not null", [table.name]).fetchone()
    if there:
        require_locked(cursor, table.name, types=False)
    else:
        source = find(plan.source)
        Staging(source.name, source.driver_adapter).ensure(table, staged_columns(plan.layout))


def _as_table_has_them(batch: pa.RecordBatch, fields: tuple[WrittenField, ...]) -> pa.RecordBatch:
    """The columns that are written."""
    columns = [_column(batch.column(field.index), field) for field in fields]
    return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])


def _column(array: Any, field: WrittenField) -> Any:
    if not field.as_local:
        return array
    try:
        return pc.local_timestamp(array)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the session's time zone {array.type.tz} is none that Arrow knows: set spark.sql.session.timeZone to one "
            f"such as Europe/Paris or +01:00, or use write_table() ({error}). Nothing was written"
        ) from error
