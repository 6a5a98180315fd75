"""The tables of messages in SQLite. One transaction writes at a time, and so neither rows nor keys need locks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import translated
from txpool.resources.messages.tables import MessageTables
from txpool.resources.records import FORMAT, require_format

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

_NAMES: Final = {"messages": "main.txpool_messages", "positions": "main.txpool_message_positions", "locks": ""}
_COLUMNS: Final = {
    "messages": """
        number integer primary key autoincrement, queue text not null, id text not null, message_key text,
        body blob, headers text not null, sent_at real not null, due real not null,
        tries integer not null default 0, error text""",
    "positions": """
        consumer text not null, topic text not null, part integer not null, position integer not null,
        tries integer not null default 0, primary key (consumer, topic, part)""",
}
_INDEX: Final = "create index if not exists main.txpool_messages_queue on txpool_messages (queue, number)"


class SQLiteMessages(MessageTables):
    """The tables of messages in SQLite."""

    parameter = "?"
    now = "((julianday('now') - 2440587.5) * 86400.0)"
    locks_rows = False

    def create(self, source: DataSource) -> None:
        with closing(source.driver_adapter.connect()) as raw, translated():
            raw.execute("pragma query_only = off")
            for name, columns in _COLUMNS.items():
                table = _NAMES[name]
                if not _is_there(raw, table):  # SQLite keeps the text of the statement, and in it the format.
                    raw.execute(f"create table if not exists {table} (/* {FORMAT} */ {columns})")
                    if name == "messages":
                        raw.execute(_INDEX)

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        return _is_there(raw, _NAMES["messages"])

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES


def _is_there(raw: Any, table: str) -> bool:
    find = "select sql from main.sqlite_master where name = ?"
    found = raw.execute(find, [table.removeprefix("main.")]).fetchone()
    if found is not None:
        require_format(table, found[0])
    return found is not None
