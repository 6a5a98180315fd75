"""The tables of messages in SQLite. One transaction writes at a time, and so neither rows nor keys need locks.

The tries are in a file of their own beside it: they are written while the transaction that handles a message writes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import translated
from txpool.resources.messages.tables import MessageTables
from txpool.resources.records import FORMAT, require_format

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

_NAMES: Final = {
    "messages": "main.txpool_messages",
    "positions": "main.txpool_message_positions",
    "tries": "main.txpool_message_tries",
    "locks": "",
}
_COLUMNS: Final = {
    "messages": """
        number integer primary key autoincrement, queue text not null, id text not null, message_key text,
        body blob, headers text not null, sent_at real not null, due real not null,
        tries integer not null default 0, error text""",
    "positions": """
        consumer text not null, topic text not null, part integer not null, position integer not null,
        tries integer not null default 0, primary key (consumer, topic, part)""",
}
_TRIES: Final = """
    consumer text, topic text, part integer, place integer, message text not null, tries integer not null,
    primary key (consumer, topic, part, place)"""
#: For how many seconds another process is awaited that writes there: it never holds the file for longer than a commit.
_PATIENCE: Final = 60
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
                if _create_table(raw, table, columns) and name == "messages":
                    raw.execute(_INDEX)

    @contextmanager
    def apart(self, source: DataSource) -> Iterator[Any]:
        path = os.path.realpath(source.url.removeprefix("sqlite:///"))
        opened = sqlite3.connect(f"{path}-tries", isolation_level=None, timeout=_PATIENCE)
        with closing(opened) as raw, translated():
            _create_table(raw, _NAMES["tries"], _TRIES)
            yield raw.cursor()

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        return _is_there(raw, _NAMES["messages"])

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES


def _create_table(raw: Any, table: str, columns: str) -> bool:
    """Create it, unless it is there; whether it was not."""
    if _is_there(raw, table):
        return False
    # SQLite keeps the text of the statement, and in it the format.
    raw.execute(f"create table if not exists {table} (/* {FORMAT} */ {columns})")
    return True


def _is_there(raw: Any, table: str) -> bool:
    find = "select sql from main.sqlite_master where name = ?"
    found = raw.execute(find, [table.removeprefix("main.")]).fetchone()
    if found is not None:
        require_format(table, found[0])
    return found is not None
