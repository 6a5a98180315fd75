"""What a task of the "txpool" format does: one partition's rows, prepared in the table or staged beside it.

Direct where the server has a slot to spare at that moment, else staged: each task sees for itself. Either way the rows
are nobody's before the driver has decided, and an attempt that it does not choose is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from txpool.datasource import DataSource, find
from txpool.errors import DataError, OperationalError, ProgrammingError
from txpool.resources.staging import Staging, StagingTable
from txpool.spark.ambient import told_by
from txpool.spark.copying import DIRECT, STAGED, Copy, Stage, measure
from txpool.spark.plan import Field, WritePlan
from txpool.spark.slots import NO_SLOT, Reservation
from txpool.spark.task import PartitionTask
from txpool.spark.worker import quicken

#: Slots that tasks leave free, for the driver's own branch.
_SPARE = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """One of a stream's."""

    #: The query's id, which lives as long as its checkpoint.
    query: str
    number: int


@dataclass
class Deposit(WriterCommitMessage):
    """What a task tells the driver."""

    #: The plan that it has worked by.
    digest: str
    gtrid: str
    number: int
    #: What its job tells of the driver's ambient transaction; empty where it has none.
    ambient: str
    #: Of a stream.
    batch: Batch | None
    #: Of Spark's: the one whose tasks write.
    stage: int
    way: str
    #: A packed PartitionResult.
    packed: dict[str, Any]


def deposit(plan: WritePlan, batches: Iterator[pa.RecordBatch], *, streaming: bool = False) -> Deposit:
    """Write one partition, for the transaction that the job tells of, or the plan's own."""
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark runs this
    quicken()
    ambient = told_by(context)
    batch = None
    if streaming:
        if ambient:
            raise ProgrammingError(
                f"this query was started within {ambient}, which it cannot be a part of: each of its batches is a "
                "transaction of its own. Start it outside of any. Nothing was written"
            )
        query, number = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        assert query is not None  # noqa: S101 - Spark runs this
        assert number is not None  # noqa: S101
        batch = Batch(query, int(number))
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
    here, _ = plan.luggage.unpack()
    source = here.get(plan.source) or find(plan.source)
    partition = context.partitionId()
    rows = (_as_table_has_them(batch, plan.fields) for batch in batches)
    task: PartitionTask | Stage
    with closing(_Slot(source if plan.strategy == DIRECT else None)) as slot:
        if slot.held:
            direct = plan.copy(gtrid, staged=False)
            way, task = DIRECT, PartitionTask(gtrid, plan.number, None, direct, plan.luggage, measure)
        elif plan.insists:
            raise OperationalError(f"{gtrid}: {NO_SLOT} in {source.name}, and strategy=direct wants one for each task")
        else:
            copy = plan.copy(gtrid, staged=True)
            staged = _Staged(
                copy.datasource, copy.statement, copy.wires, copy.label, plan.staging(gtrid), plan.staged_columns
            )
            way, task = STAGED, Stage(staged, plan.luggage)
        (packed,) = task(partition, rows)
    return Deposit(plan.digest, plan.gtrid, plan.number, ambient, batch, context.stageId(), way, packed)


class _Slot:
    """A prepared transaction's slot, kept for this task until its branch has it."""

    def __init__(self, source: DataSource | None) -> None:
        self._kept = None if source is None else Reservation(source, 1)

        if self._kept is not None and self._kept.maximum - self._kept.taken <= _SPARE:
            self._kept.release()
            self._kept = None

    @property
    def held(self) -> bool:
        return self._kept is not None and self._kept.enough

    def close(self) -> None:
        if self._kept is not None:
            self._kept.release()


@dataclass(frozen=True, slots=True)
class _Staged(Copy):
    """COPY into a staging table, which the first of the tasks creates."""

    table: StagingTable
    columns: list[str]

    def into(self, connection: Any, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        (there,) = connection.cursor().execute("select to_regclass(%s) is not null", [self.table.name]).fetchone()
        if not there:
            source = find(self.datasource)
            Staging(source.name, source.driver_adapter).ensure(self.table, self.columns)
        return Copy.into(self, connection, batches)


def _as_table_has_them(batch: pa.RecordBatch, fields: tuple[Field, ...]) -> pa.RecordBatch:
    """The columns that are written."""
    columns = [_column(batch.column(field.index), field) for field in fields]
    return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])


def _column(array: Any, field: Field) -> Any:
    if not field.as_local:
        return array
    try:
        return pc.local_timestamp(array)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the session's time zone {array.type.tz} is none that Arrow knows: set spark.sql.session.timeZone to one "
            f"such as Europe/Paris or +01:00, or use write_table() ({error}). Nothing was written"
        ) from error
