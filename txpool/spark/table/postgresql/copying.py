"""Writes the record batches of one partition by COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from txpool.resources.postgresql.qualified import qualified
from txpool.spark.table.dialect import TaskCopy
from txpool.spark.table.postgresql.encoding import copy_options, encode
from txpool.spark.table.tasks import ATTEMPT
from txpool.spark.types.columns import Layout
from txpool.spark.types.encoding import ColumnEncoding
from txpool.spark.types.identifiers import quoted, quoted_list

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection

_NAME_SESSION = qualified("select set_config('application_name', %s, true)")
_UTF8 = "utf-8"
_IN_UTF8 = qualified("select set_config('client_encoding', 'UTF8', true)")


@dataclass(frozen=True, slots=True)
class PartitionCopy(TaskCopy):
    """COPY of one partition.

    `label` is the session's application_name while it runs; empty if the transaction sets the name itself.
    """

    datasource: str
    statement: str
    encodings: tuple[ColumnEncoding, ...]
    label: str

    def run(self, connection: PEP249Connection, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """COPY over a connection. Returns the number of rows, and of bytes sent."""
        rows = size = 0
        cursor = connection.cursor()
        if self.label:
            cursor.execute(_NAME_SESSION, [self.label])
        if connection.info.encoding != _UTF8:  # texts of the binary format are in the session's
            cursor.execute(_IN_UTF8)
        with cursor.copy(self.statement) as copy:
            for number, piece in encode(batches, self.encodings):
                copy.write(piece)
                rows += number
                size += len(piece)
        return rows, size


def copy_into(datasource: str, table: str, layout: Layout, label: str = "") -> PartitionCopy:
    """The COPY into the table itself."""
    return _copy(datasource, table, layout.names, layout.encodings, label)


def copy_staged(datasource: str, staging: str, layout: Layout, label: str) -> PartitionCopy:
    """The COPY into a staging table, whose columns are `staged_columns`."""
    encodings = (*layout.encodings, ColumnEncoding(ATTEMPT, "bigint"))
    return _copy(datasource, staging, (*layout.names, ATTEMPT), encodings, label)


def _copy(
    datasource: str, table: str, names: Sequence[str], encodings: tuple[ColumnEncoding, ...], label: str
) -> PartitionCopy:
    statement = f"copy {table} ({quoted_list(names)}) from stdin ({copy_options(encodings)})"
    return PartitionCopy(datasource, statement, encodings, label)


def staged_columns(layout: Layout) -> list[str]:
    """The columns of a staging table as SQL declares them."""
    declared = zip(layout.names, layout.declared, strict=True)
    return [*(f"{quoted(name)} {kind}" for name, kind in declared), f"{ATTEMPT} bigint not null"]
