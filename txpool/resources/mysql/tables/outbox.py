"""The outbox in MariaDB and MySQL: two tables in the datasource's database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.mysql.tables.own_tables import create_table, database_of, is_ours, require_database
from txpool.resources.mysql.tables.records import outside_pool
from txpool.resources.outbox import LOCKS, OutboxDatasource, OutboxTable, lacking

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver

_TABLE: Final = "txpool_outbox"
_LOCKS: Final = "txpool_outbox_locks"
_DELIVERED_BY: Final = "delivered_by varchar(64) character set ascii"
_TRACEPARENT: Final = "traceparent varchar(64) character set ascii"
_TURN: Final = "turn bigint not null default 0"
_TAKE: Final = "update {locks} set turn = turn + 1 where number = ?"
_COLUMNS: Final = f"""
    number bigint auto_increment primary key, id varchar(36) character set ascii not null,
    message_key text character set utf8mb4, payload longblob not null, is_text int not null,
    attempts int not null default 0, parked int not null default 0, error text character set utf8mb4,
    {_DELIVERED_BY}, {_TRACEPARENT},
    made_at timestamp(6) not null default current_timestamp(6)
"""


class MySQLOutbox(OutboxTable):
    """The table of messages in MariaDB and MySQL."""

    parameter = "%s"
    limit_waits = "set session lock_wait_timeout = {}"
    age = "timestampdiff(second, min(case when parked = 0 then made_at end), current_timestamp(6))"

    def create(self, source: OutboxDatasource) -> None:
        with outside_pool(source.driver_adapter) as raw:
            require_database(raw, source.name)
            raw.session.run("set session transaction read write")
            create_table(raw.session, _LOCKS, f"number int primary key, {_TURN}")
            raw.session.run(f"insert ignore into {_LOCKS} (number) values {', '.join(f'({n})' for n in range(LOCKS))}")
            create_table(raw.session, _TABLE, _COLUMNS)
            self.bring_up_to_date(raw)

    def outside(self, driver: Driver) -> AbstractContextManager[Any]:
        return outside_pool(driver)

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        require_database(raw, datasource)
        return is_ours(raw.session, _LOCKS) and is_ours(raw.session, _TABLE)

    def lacks(self, raw: Any) -> str:
        for table, *columns in ((_TABLE, _DELIVERED_BY, _TRACEPARENT), (_LOCKS, _TURN)):
            rows = raw.session.run(
                "select column_name from information_schema.columns "
                f"where table_schema = database() and table_name = '{table}'"
            )
            if statement := lacking(table, [str(name) for (name,) in rows], *columns):
                return statement
        return ""

    def take_lock(self, cursor: Any, number: int) -> bool:
        # The row is changed: of a prepared transaction InnoDB forgets at a restart what it has only locked.
        return self.changes_one(cursor, _TAKE, [number])

    def names(self, cursor: Any) -> dict[str, str]:
        database = database_of(cursor)
        return {"table": f"{database}.{_TABLE}", "locks": f"{database}.{_LOCKS}"}
