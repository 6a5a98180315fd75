"""The tables of messages in PostgreSQL, in the schema of txpool's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.messages.tables import LOCKS, MessageTables
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.tables.records import create_outside_pool, create_table, outside_pool
from txpool.resources.postgresql.tables.staging import SCHEMA, create_schema
from txpool.resources.postgresql.tables.trust import require_relations
from txpool.resources.records import require_format

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

_NAMES: Final = {each: f"{SCHEMA}.message_{each}" for each in ("locks", "positions", "tries")} | {
    "messages": f"{SCHEMA}.messages"
}
_MESSAGES: Final = qualified("""
    number bigint generated always as identity primary key, queue pg_catalog.text not null,
    id pg_catalog.text not null, message_key pg_catalog.text, body pg_catalog.bytea,
    headers pg_catalog.text not null, sent_at double precision not null, due double precision not null,
    tries integer not null default 0, error pg_catalog.text
""")
_POSITIONS: Final = qualified("""
    consumer pg_catalog.text, topic pg_catalog.text, part integer, position bigint not null,
    tries integer not null default 0, primary key (consumer, topic, part)
""")
_TRIES: Final = qualified("""
    consumer pg_catalog.text, topic pg_catalog.text, part integer, place bigint,
    message pg_catalog.text not null, tries integer not null, primary key (consumer, topic, part, place)
""")
_FILL: Final = qualified(
    f"insert into {_NAMES['locks']} select n from generate_series(0, {LOCKS - 1}) as it(n) on conflict do nothing"
)
_IS_THERE: Final = qualified("select to_regclass(%s) is not null")
_DESCRIBED: Final = qualified("select obj_description(to_regclass(%s)::oid, 'pg_class')")


class PostgreSQLMessages(MessageTables):
    """The tables of messages in PostgreSQL."""

    parameter = "%s"
    now = "extract(epoch from clock_timestamp())::double precision"

    def create(self, source: DataSource) -> None:
        roles = source.driver_adapter.roles
        create_outside_pool(source, lambda connection: self._create_over(connection, roles))

    def _create_over(self, connection: Any, roles: Collection[str]) -> None:
        cursor = connection.cursor()
        if _is_there(cursor, roles) and cursor.execute(_IS_THERE, [_NAMES["tries"]]).fetchone()[0]:
            return
        cursor.execute("set default_transaction_read_only = off")
        create_schema(connection)
        create_table(cursor, _NAMES["locks"], "number integer primary key")
        create_table(cursor, _NAMES["positions"], _POSITIONS)
        create_table(cursor, _NAMES["tries"], _TRIES)
        create_table(cursor, _NAMES["messages"], _MESSAGES)
        cursor.execute(_FILL)
        cursor.execute(f"create index if not exists messages_queue on {_NAMES['messages']} (queue, number)")

    @contextmanager
    def apart(self, source: DataSource) -> Iterator[Any]:
        with outside_pool(source.driver_adapter) as connection:
            yield connection.cursor()

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        return _is_there(raw.cursor(), driver.roles)

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES

    def spelled(self, statement: str) -> str:
        return spelled(statement)


def _is_there(cursor: Any, roles: Collection[str]) -> bool:
    if not cursor.execute(_IS_THERE, [f"{SCHEMA}.messages_queue"]).fetchone()[0]:  # made last, after what it needs
        return False
    require_relations(cursor, *_NAMES.values(), roles=roles)
    require_format(_NAMES["messages"], cursor.execute(_DESCRIBED, [_NAMES["messages"]]).fetchone()[0])
    return True
