"""One write_table() into a Delta table within a transaction: tasks stage files of rows, the driver prepares them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from txpool.errors import NotSupportedError, OperationalError
from txpool.lake.opening import require_append
from txpool.process.durable import sync
from txpool.resources.delta.table import TableState, path_of, write_rows
from txpool.spark.commit.write import next_number
from txpool.spark.table.lake.task import FilesTask
from txpool.spark.table.lake.write import FilesWrite
from txpool.spark.table.report import WriteReport
from txpool.spark.types.columns import TEXT, WHOLE, Column, Layout, mismatch, pair, selected
from txpool.spark.types.encoding import ColumnEncoding

if TYPE_CHECKING:
    from txpool.resources.delta.work import DeltaWork
    from txpool.tm.transaction import Transaction


class DeltaWrite(FilesWrite):
    """Tasks write the rows into the staging folder. What lost attempts leave there goes with it."""

    def run(self, ambient: Transaction) -> WriteReport:
        """Write as a part of the transaction."""
        require_append(self.source, self.mode)
        if self.create or self.transaction_id is not None:
            which = "create=True" if self.create else "transaction_id"
            raise NotSupportedError(
                f"{self.source.name}: write_table() into a Delta table takes no {which}, and nothing was done: create "
                "the table by DeltaTable.create(), and let `with txpool.transaction(transaction_id=…, record_in=…):` "
                "record what was done"
            )
        ambient.adopt((), late_branches=False)  # raises without a decision log, before the job rather than after it
        work: DeltaWork = ambient.enlist_datasource(self.source).pooled
        where = work.where(self.table)
        state = work.state(self.table)
        report = WriteReport(ambient.gtrid, next_number(ambient), where, self.mode)
        df, layout = match(self.df, state, where)
        task = DeltaTask(
            gtrid=ambient.gtrid,
            write=report.write,
            encodings=layout.encodings,
            done=self.accumulator(df),
            staged=str(work.staged),
            name=work.begin_write(),
            state=state,
            where=where,
        )
        report, adds = self.run_job(ambient, df, task, report)
        work.take(self.table, adds)
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTask(FilesTask):
    """The files of a Delta table. The table itself is not loaded: this process may be forked."""

    staged: str
    name: str
    state: TableState
    where: str

    def write_attempt(self, numbers: str, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, list[Any]]:
        schema = self.state.arrow(self.where)
        folder = Path(self.staged, f"{self.name}.{numbers}")
        try:
            folder.mkdir()
        except FileNotFoundError as error:
            raise OperationalError(
                f"{self.where}: {self.staged} is not there for this task. Either {self.gtrid} has ended, or this "
                "executor does not have the driver's folder under that path, as a mount of one file system"
            ) from error
        rows, adds = write_rows(folder, self.state, self._whole(batches, schema), schema, self.where)
        for each in adds:
            sync(folder / path_of(each))
        return rows, sum(each["size"] for each in adds), adds

    def _whole(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = self.converted(batch, schema)
            columns = [
                given[field.name] if field.name in given.schema.names else pa.nulls(given.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def match(df: DataFrame, state: TableState, table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the table's column names. ProgrammingError if a column or a type does not fit."""
    wanted = {field.name: field for field in T.StructType.fromJson(json.loads(state.metadata["schemaString"])).fields}
    columns = [
        Column(name, field.dataType.simpleString(), "", required=not field.nullable) for name, field in wanted.items()
    ]

    def encoding(field: T.StructField, column: Column, _: str) -> ColumnEncoding:
        kind = wanted[column.name].dataType
        if not _keeps(kind, field.dataType):
            raise mismatch(
                f"column {field.name}",
                f"is {field.dataType.simpleString()}, and {table}.{column.name} is {kind.simpleString()}, which does "
                "not keep each of its values: cast it, so that you see what changes",
            )
        return ColumnEncoding(column.name, kind.simpleString())

    pairs, layout = pair(df.schema.fields, columns, table, encoding)
    return selected(df, pairs, lambda *_: None), layout


def _keeps(wanted: T.DataType, given: T.DataType) -> bool:
    """Whether a column keeps each value of a type as it is."""
    match given, wanted:
        case T.DecimalType(), T.DecimalType():
            return given.scale == wanted.scale and given.precision <= wanted.precision
        case T.ArrayType(), T.ArrayType():
            return _keeps(wanted.elementType, given.elementType)
        case T.MapType(), T.MapType():
            return _keeps(wanted.keyType, given.keyType) and _keeps(wanted.valueType, given.valueType)
        case T.StructType(), T.StructType():
            return wanted.names == given.names and all(
                _keeps(field.dataType, its.dataType) for field, its in zip(wanted.fields, given.fields, strict=True)
            )
    widening: Sequence[tuple[type[T.DataType], ...]] = (WHOLE, (T.FloatType, T.DoubleType))
    wider = any(type(wanted) in kinds[kinds.index(type(given)) :] for kinds in widening if type(given) in kinds)
    return type(given) is type(wanted) or wider or (isinstance(given, TEXT) and isinstance(wanted, TEXT))
