"""How Spark's tasks write tables of MariaDB and MySQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from txpool.datasource import DataSource
from txpool.resources.base import Role
from txpool.resources.mysql.tables.own_tables import quoted
from txpool.resources.mysql.tables.partitions import MySQLPartitions
from txpool.resources.mysql.tables.staging import MySQLStaging, MySQLStagingTable
from txpool.spark.commit.status import TaggedJob
from txpool.spark.table.dialect import TableDialect
from txpool.spark.table.mysql.copying import LOCKED, MySQLCopy
from txpool.spark.table.mysql.merge import MySQLMerge
from txpool.spark.table.mysql.target import is_independent, read_target, require_privileges, require_unique
from txpool.spark.table.mysql.types import definitions, match, pair_columns, quoted_list
from txpool.spark.table.target import Target
from txpool.spark.table.tasks import ATTEMPT
from txpool.spark.types.columns import Layout
from txpool.spark.types.encoding import ColumnEncoding
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor

_LABEL: Final = re.compile("[A-Za-z0-9_.:/-]+")


class MySQLTables:
    """As `TableDialect`."""

    partitions = MySQLPartitions()
    definitions = staticmethod(definitions)
    read_target = staticmethod(read_target)
    pair = staticmethod(pair_columns)
    match = staticmethod(match)
    require_unique = staticmethod(require_unique)
    require_privileges = staticmethod(require_privileges)
    staging_table = MySQLStagingTable
    merge = MySQLMerge

    def why_staged(self, datasource: DataSource, target: Target, mode: str) -> str | None:
        if datasource.role is not Role.PREPARED:
            return f"{datasource.name} (mode={datasource.mode}) cannot prepare"
        if mode in ("overwrite", "upsert"):
            return f"{mode} is one statement over all rows"
        if not target.exists:
            return f"{target.name} is created in the driver's branch, where tasks cannot see it"
        return None

    def why_direct_failed(self, error: BaseException | None) -> str | None:
        return LOCKED if LOCKED in str(error) else None

    def is_written_by(self, connection: PEP249Connection, name: str) -> bool:
        """True: an ordinary account does not see which locks a session holds."""
        return True

    def is_independent(self, datasource: DataSource, target: Target) -> bool:
        return Context().run(is_independent, datasource, target)

    def staging(self, datasource: DataSource) -> MySQLStaging:
        return MySQLStaging(datasource.name, datasource.driver_adapter, connect=datasource.open_session)

    def staged_columns(self, layout: Layout) -> list[str]:
        declared = zip(layout.names, layout.declared, strict=True)
        return [*(f"{quoted(name)} {kind}" for name, kind in declared), f"{ATTEMPT} bigint not null"]

    def require_staged(self, cursor: PEP249Cursor, table: Any) -> bool:
        """False: only the register knows the table's name."""
        return False

    def copy_into(
        self, datasource: str, target: Target, layout: Layout, label: str = "", *, lock_seconds: int | None = None
    ) -> MySQLCopy:
        return MySQLCopy(datasource, _head(label, target.name, layout.names), layout.encodings, lock_seconds)

    def copy_staged(self, datasource: str, table: MySQLStagingTable, layout: Layout, label: str) -> MySQLCopy:
        encodings = (*layout.encodings, ColumnEncoding(ATTEMPT, "number"))
        return MySQLCopy(datasource, _head(label, table.name, [*layout.names, ATTEMPT]), encodings)

    def watch(
        self, transaction: Transaction, write: int, sources: Sequence[DataSource], job: TaggedJob | None = None
    ) -> AbstractContextManager[object]:
        """Nothing: staged rows keep nobody waiting, and the server ends a wait (innodb_lock_wait_timeout)."""
        return nullcontext()

    def running(self, connection: PEP249Connection, label: str) -> tuple[int, int]:
        return 0, 0


def _head(label: str, table: str, names: Sequence[str]) -> str:
    """An INSERT statement up to its rows. The server's list of sessions shows the label."""
    comment = f"/* {label} */ " if _LABEL.fullmatch(label) else ""
    return f"insert {comment}into {table} ({quoted_list(names)}) values "


TABLES: Final[TableDialect] = MySQLTables()
