"""What a write asks of the database whose tables Spark's tasks write: one object for each kind of database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from txpool.datasource import DataSource, connect
from txpool.errors import ProgrammingError
from txpool.resources.base import Role
from txpool.resources.parts import NO_SPARK
from txpool.resources.recovery_access import StagingTable

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor
    from txpool.spark.commit.attempts import PartitionResult
    from txpool.spark.commit.status import TaggedJob
    from txpool.spark.table.target import Target
    from txpool.spark.types.columns import Column, Layout
    from txpool.tm.transaction import Transaction


class TaskCopy(ABC):
    """Writes the rows of one partition. Plain data, for the tasks."""

    __slots__ = ()

    datasource: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Write within the ambient transaction. Returns the number of rows, and of bytes sent."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return 0, 0  # without a connection there is no branch
        return self.run(connect(self.datasource), chain([first], batches))

    @abstractmethod
    def run(self, connection: PEP249Connection, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Write over a connection, without a COMMIT. Returns the number of rows, and of bytes sent."""


class Merge(Protocol):
    """Moves the staged rows of one write into the table, in the driver's branch."""

    @property
    def target(self) -> Target: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def mode(self) -> str: ...

    def run(self, cursor: PEP249Cursor, results: Sequence[PartitionResult]) -> None:
        """Move the rows of the chosen attempts.

        Errors: OperationalError if rows are lost; DataError if two rows have the same key, or a key is NULL.
        """


class TaskStaging(Protocol):
    """The staging tables of one database. Every method opens a connection and closes it."""

    def create(self, table: Any, columns: Sequence[str]) -> None:
        """Create the staging table of a write; `columns` are column definitions in SQL."""

    def ensure(self, table: Any, columns: Sequence[str]) -> Any:
        """The staging table of a write, created if no other process has created one."""

    def found(self, table: Any) -> Any:
        """The staging table that the tasks of a write use."""

    def drop(self, table: StagingTable) -> None:
        """Drop the staging table, if it exists."""


class PartitionRecords(Protocol):
    """The records of partitions that commit separately; recovery deletes none. A key is transaction_id, target, number.

    A method with a `cursor` works in that cursor's transaction.
    """

    def create(self, source: DataSource) -> None:
        """Create their table if it does not exist."""

    def claim(self, cursor: PEP249Cursor, key: Sequence[Any]) -> int | None:
        """None if the partition is to be written now; the number of rows of the attempt that has committed it.

        Waits for another attempt that has not ended.
        """

    def finish(self, cursor: PEP249Cursor, key: Sequence[Any], rows: int) -> None:
        """Write how many rows the partition has."""


class TableDialect(Protocol):
    """How Spark's tasks write the tables of one kind of database. It keeps nothing of any datasource."""

    @property
    def partitions(self) -> PartitionRecords: ...

    def definitions(self, fields: Iterable[StructField], keys: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Names and declarations of a new table's columns. ProgrammingError if a type has no counterpart."""

    def read_target(
        self,
        datasource: DataSource,
        table: str,
        new: Sequence[tuple[str, str]] | None = None,
        keys: Sequence[str] = (),
        *,
        created_by: str = "create=True",
        gtrid: str = "",
    ) -> Target:
        """Describe the table, or for a missing one what it would be with the columns `new`; nothing stays.

        `created_by` is how the caller's user has a missing table created, for the error; `gtrid` the transaction that
        will write. ProgrammingError if the table is missing and `new` is None; NotSupportedError if it is a view or the
        like.
        """

    def pair(
        self, fields: Iterable[StructField], columns: Sequence[Column], table: str
    ) -> tuple[list[tuple[StructField, Column]], Layout]:
        """Each field with its column, and the layout. ProgrammingError if a column does not fit."""

    def match(self, df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
        """The DataFrame with the names and types that the table needs, and its layout. Errors: as `pair`."""

    def require_unique(self, target: Target, keys: Sequence[str], names: Sequence[str]) -> None:
        """ProgrammingError if an upsert by `keys` of the columns `names` could touch other rows than those of a key."""

    def require_privileges(
        self,
        datasource: DataSource,
        target: Target,
        names: Sequence[str],
        *,
        mode: str = "append",
        keys: Sequence[str] = (),
        strategy: str = "auto",
        stacklevel: int = 3,
    ) -> None:
        """ProgrammingError with the missing grant if the write would fail; a warning if it might fail.

        `names` are the columns that are written. `strategy` is that of a write_table(), or `each` for partitions that
        commit separately.
        """

    def why_staged(self, datasource: DataSource, target: Target, mode: str) -> str | None:
        """Why tasks cannot write into the table itself; None if they can."""

    def why_direct_failed(self, error: BaseException | None) -> str | None:
        """Why tasks could not write into the table itself, if a staged write may be possible; else None."""

    def is_written_by(self, connection: PEP249Connection, name: str) -> bool:
        """Whether the connection's transaction may hold a lock for which other writers of the table have to wait.

        Asked before the write does anything itself.
        """

    def is_independent(self, datasource: DataSource, target: Target) -> bool:
        """Whether no task has to wait in the table for another task or the driver. False is always safe."""

    def staging_table(self, gtrid: str, write: int) -> Any:
        """The staging table of a write of a transaction."""

    def staging(self, datasource: DataSource) -> TaskStaging: ...

    def staged_columns(self, layout: Layout) -> list[str]:
        """The columns of a staging table as SQL declares them."""

    def require_staged(self, cursor: PEP249Cursor, table: Any) -> bool:
        """In a task: whether the staging table exists. An error if it is not trusted."""

    def copy_into(
        self, datasource: str, target: Target, layout: Layout, label: str = "", *, lock_seconds: int | None = None
    ) -> TaskCopy:
        """What writes into the table itself. `label` is the session's name while it runs.

        If nothing but a timeout shows that tasks wait for each other, it is `lock_seconds`; None is the session's.
        """

    def copy_staged(self, datasource: str, table: Any, layout: Layout, label: str) -> TaskCopy:
        """What writes into a staging table, whose columns are `staged_columns`."""

    def merge(
        self,
        datasource: DataSource,
        table: Any,
        target: Target,
        layout: Layout,
        *,
        mode: str,
        keys: tuple[str, ...],
        created: Sequence[tuple[str, str]],
    ) -> Merge: ...

    def watch(
        self, transaction: Transaction, write: int, sources: Sequence[DataSource], job: TaggedJob | None = None
    ) -> AbstractContextManager[object]:
        """For the length of a block: ends a wait of the transaction for itself, if the database does not."""

    def running(self, connection: PEP249Connection, label: str) -> tuple[int, int]:
        """The rows and bytes that the server has received of writes that have not ended; 0 if it does not tell."""


def require_not_alone(source: DataSource) -> None:
    """ProgrammingError for a datasource that must be the only one of its transaction: the tasks' work is another."""
    if source.role is Role.ALONE:
        modes = " or ".join(mode for mode in source.resource_manager.modes if mode != source.mode)
        raise ProgrammingError(
            f"{source.name} (mode={source.mode}) can only be alone in a transaction, and a write of Spark's tasks has "
            f"several parts: write mode = {modes}, or atomicity='partition', which commits each partition by itself. "
            "Nothing was done."
        )


def dialect_of(datasource: DataSource) -> TableDialect:
    """How Spark's tasks write the tables of this datasource, whose resource manager has a part for that."""
    dialect: TableDialect = resolve_name((datasource.resource_manager.spark or NO_SPARK).tasks)
    return dialect
