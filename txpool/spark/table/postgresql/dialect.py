"""How Spark's tasks write PostgreSQL's tables: by COPY."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, LiteralString

from txpool.datasource import DataSource
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.tables.records import create_table
from txpool.resources.postgresql.tables.staging import SCHEMA, PostgreSQLStagingTable, Staging
from txpool.resources.postgresql.tables.trust import require_locked
from txpool.spark.commit.self_deadlock import SelfDeadlockDetector
from txpool.spark.commit.slots import NO_SLOT
from txpool.spark.table.dialect import TableDialect
from txpool.spark.table.postgresql.copying import PartitionCopy, copy_into, copy_staged, staged_columns
from txpool.spark.table.postgresql.merge import PostgreSQLMerge
from txpool.spark.table.postgresql.privileges import require_privileges
from txpool.spark.table.postgresql.target import is_written_by, read_target, why_staged
from txpool.spark.table.postgresql.types import definitions, match, pair_columns
from txpool.spark.table.target import Target, require_unique
from txpool.spark.types.columns import Layout

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor

# Whether a table has neither unique indexes nor triggers (foreign keys have triggers): no task has to wait there for
# another task or the driver.
_INDEPENDENT: LiteralString = qualified(
    """
    select relkind = 'r' and not relhastriggers
        and not exists (select from pg_index where indrelid = c.oid and (indisunique or indisexclusion))
    from pg_class c where oid = to_regclass(%s)
"""
)
_EXISTS: LiteralString = qualified("select to_regclass(%s) is not null")
_RUNNING_COPIES: LiteralString = qualified(
    """
    select coalesce(sum(c.tuples_processed), 0)::int8, coalesce(sum(c.bytes_processed), 0)::int8
    from pg_stat_progress_copy c join pg_stat_activity a on a.pid = c.pid
    where a.application_name = %(label)s or starts_with(a.application_name, %(label)s::text || '/')
"""
)
_PARTITIONS = f"{SCHEMA}.partitions"
_PARTITION_COLUMNS = qualified("""
    transaction_id pg_catalog.text, target pg_catalog.text, partition integer, row_count bigint,
    made_at pg_catalog.timestamptz not null default now(), primary key (transaction_id, target, partition)
""")
_CLAIM = (
    f"insert into {_PARTITIONS} (transaction_id, target, partition) values (%s, %s, %s) "
    "on conflict do nothing returning partition"
)
_KEY: LiteralString = qualified("transaction_id = %s and target = %s and partition = %s")
_READ = f"select row_count from {_PARTITIONS} where {_KEY}"
_FINISH = f"update {_PARTITIONS} set row_count = %s where {_KEY}"


class PostgreSQLPartitions:
    """The records of partitions: a table in the schema of txpool's tables."""

    def create(self, source: DataSource) -> None:
        with closing(source.connect()) as connection:
            create_table(connection.cursor(), _PARTITIONS, _PARTITION_COLUMNS)
            connection.commit()

    def claim(self, cursor: PEP249Cursor, key: Sequence[Any]) -> int | None:
        require_locked(cursor, _PARTITIONS)
        # The INSERT waits for another attempt that has not ended, and then finds its record or takes its place.
        if cursor.execute(_CLAIM, key).fetchone() is not None:
            return None
        (rows,) = cursor.execute(_READ, key).fetchone()
        return int(rows)

    def finish(self, cursor: PEP249Cursor, key: Sequence[Any], rows: int) -> None:
        cursor.execute(_FINISH, [rows, *key])


class PostgreSQLTables:
    """As `TableDialect`."""

    partitions = PostgreSQLPartitions()
    definitions = staticmethod(definitions)
    read_target = staticmethod(read_target)
    pair = staticmethod(pair_columns)
    match = staticmethod(match)
    require_unique = staticmethod(require_unique)
    require_privileges = staticmethod(require_privileges)
    why_staged = staticmethod(why_staged)
    is_written_by = staticmethod(is_written_by)
    staging_table = PostgreSQLStagingTable
    watch = SelfDeadlockDetector
    staged_columns = staticmethod(staged_columns)

    def why_direct_failed(self, error: BaseException | None) -> str | None:
        return str(error) if NO_SLOT in str(error) else None

    def is_independent(self, datasource: DataSource, target: Target) -> bool:
        def ask() -> bool:
            with closing(datasource.connect()) as connection:
                (found,) = connection.cursor().execute(_INDEPENDENT, [target.name]).fetchone()
                return bool(found)

        return Context().run(ask)

    def staging(self, datasource: DataSource) -> Staging:
        return Staging(datasource.name, datasource.driver_adapter, connect=datasource.open_session)

    def require_staged(self, cursor: PEP249Cursor, table: PostgreSQLStagingTable) -> bool:
        (exists,) = cursor.execute(_EXISTS, [table.name]).fetchone()
        if exists:
            require_locked(cursor, table.name, types=False)
        return bool(exists)

    def copy_into(
        self, datasource: str, target: Target, layout: Layout, label: str = "", *, lock_seconds: int | None = None
    ) -> PartitionCopy:
        return copy_into(datasource, target.name, layout, label)

    def copy_staged(self, datasource: str, table: PostgreSQLStagingTable, layout: Layout, label: str) -> PartitionCopy:
        return copy_staged(datasource, table.name, layout, label)

    def merge(
        self,
        datasource: DataSource,
        table: PostgreSQLStagingTable,
        target: Target,
        layout: Layout,
        *,
        mode: str,
        keys: tuple[str, ...],
        created: Sequence[tuple[str, str]],
    ) -> PostgreSQLMerge:
        return PostgreSQLMerge(table.gtrid, target, layout, mode, keys, table.name, created)

    def running(self, connection: PEP249Connection, label: str) -> tuple[int, int]:
        rows, size = connection.cursor().execute(_RUNNING_COPIES, {"label": label}).fetchone()
        return rows, size


TABLES: Final[TableDialect] = PostgreSQLTables()
