"""The records of partitions that commit separately, in MariaDB and MySQL: a table in the datasource's database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import translated
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.tables.own_tables import create_table, database_of, require_database

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.raw import SqlCursor

_PARTITIONS: Final = "txpool_spark_partitions"
_PARTITION_COLUMNS: Final = """
    transaction_id varbinary(800) not null, target varbinary(600) not null, part int not null, row_count bigint,
    made_at timestamp(6) not null default current_timestamp(6), primary key (transaction_id, target, part)
"""
_KEY: Final = "transaction_id = %s and target = %s and part = %s"
_DUPLICATE: Final = 1062
#: Seconds that a task waits for another attempt of its partition.
_ATTEMPT_SECONDS: Final = 3_600


class MySQLPartitions:
    """The records of partitions: a table in the datasource's database."""

    def create(self, source: DataSource) -> None:
        with closing(source.driver_adapter.connect()) as raw, translated():
            require_database(raw, source.name)
            raw.session.run("set autocommit = 1")
            create_table(raw.session, _PARTITIONS, _PARTITION_COLUMNS)

    def claim(self, cursor: SqlCursor, key: Sequence[Any]) -> int | None:
        table, bound = _qualified(cursor), _bound(key)
        cursor.execute(f"set session innodb_lock_wait_timeout = {_ATTEMPT_SECONDS}")
        try:
            cursor.execute(f"insert into {table} (transaction_id, target, part) values (%s, %s, %s)", bound)
        except Exception as error:
            if code_of(error) != _DUPLICATE:
                raise
        else:
            return None
        cursor.execute(f"select row_count from {table} where {_KEY} lock in share mode", bound)
        (rows,) = cursor.fetchone()
        return int(rows)

    def finish(self, cursor: SqlCursor, key: Sequence[Any], rows: int) -> None:
        cursor.execute(f"update {_qualified(cursor)} set row_count = %s where {_KEY}", [rows, *_bound(key)])


def _qualified(cursor: SqlCursor) -> str:
    return f"{database_of(cursor)}.{_PARTITIONS}"


def _bound(key: Sequence[Any]) -> list[Any]:
    return [part.encode() if isinstance(part, str) else part for part in key]
