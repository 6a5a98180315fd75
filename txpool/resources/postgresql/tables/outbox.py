"""The outbox in PostgreSQL: two tables in the schema of txpool's tables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, LiteralString

from txpool.resources.outbox import LOCKS, OutboxDatasource, OutboxTable, lacking
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.tables.records import create_outside_pool, create_table, outside_pool
from txpool.resources.postgresql.tables.staging import SCHEMA, create_schema
from txpool.resources.postgresql.tables.trust import require_relations
from txpool.resources.records import require_format

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver

_TABLE: Final = f"{SCHEMA}.outbox"
_LOCKS: Final = f"{SCHEMA}.outbox_locks"
_NAMES: Final = {"table": _TABLE, "locks": _LOCKS}
_COLUMNS: Final = qualified("""
    number bigint generated always as identity primary key, id pg_catalog.text not null, message_key pg_catalog.text,
    payload pg_catalog.bytea not null, is_text integer not null, attempts integer not null default 0,
    parked integer not null default 0, error pg_catalog.text, delivered_by pg_catalog.text,
    traceparent pg_catalog.text, made_at pg_catalog.timestamptz not null default now()
""")
_FILL: Final = qualified(
    f"insert into {_LOCKS} select n from generate_series(0, {LOCKS - 1}) as it(n) on conflict do nothing"
)
_DESCRIBED: LiteralString = qualified(
    "select obj_description(oid, 'pg_class') from pg_class where oid = to_regclass(%s)"
)
_COLUMNS_OF: LiteralString = qualified("select attname from pg_attribute where attrelid = to_regclass(%s)")


class PostgreSQLOutbox(OutboxTable):
    """The table of messages in PostgreSQL."""

    parameter = "%s"
    limit_waits = "set lock_timeout = '{}s'"
    age = "extract(epoch from (now() - min(case when parked = 0 then made_at end)))"

    def create(self, source: OutboxDatasource) -> None:
        create_outside_pool(source, self._create_over)

    def _create_over(self, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("set default_transaction_read_only = off")
        create_schema(connection)
        create_table(cursor, _LOCKS, "number integer primary key")
        cursor.execute(_FILL)
        create_table(cursor, _TABLE, _COLUMNS)
        self.bring_up_to_date(connection)

    def outside(self, driver: Driver) -> AbstractContextManager[Any]:
        return outside_pool(driver)

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        cursor = raw.cursor()
        require_relations(cursor, _TABLE, _LOCKS, roles=driver.roles)
        found = cursor.execute(_DESCRIBED, [_TABLE]).fetchone()
        if found is not None:
            require_format(_TABLE, found[0])
        return found is not None

    def lacks(self, raw: Any) -> str:
        names = [name for (name,) in raw.cursor().execute(_COLUMNS_OF, [_TABLE]).fetchall()]
        return lacking(_TABLE, names, "delivered_by pg_catalog.text", "traceparent pg_catalog.text")

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES

    def spelled(self, statement: str) -> str:
        return spelled(statement)
