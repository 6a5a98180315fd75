"""The outbox in SQLite: a table in the main database. One transaction writes at a time, and so keys need no locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import translated
from txpool.resources.outbox import OutboxDatasource, OutboxTable, lacking
from txpool.resources.records import FORMAT, require_format

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver

_NAME: Final = "txpool_outbox"
_NAMES: Final = {"table": f"main.{_NAME}", "locks": ""}
# SQLite gives a number that has been deleted to nobody else.
_COLUMNS: Final = """
    number integer primary key autoincrement, id text not null, message_key text, payload blob not null,
    is_text integer not null, attempts integer not null default 0, parked integer not null default 0, error text,
    delivered_by text, traceparent text,
    made_at text not null default current_timestamp
"""


class SQLiteOutbox(OutboxTable):
    """The table of messages in SQLite."""

    parameter = "?"
    limit_waits = "pragma busy_timeout = {}000"
    age = "(julianday('now') - julianday(min(case when parked = 0 then made_at end))) * 86400"
    locks_rows = False

    def create(self, source: OutboxDatasource) -> None:
        with _outside_pool(source.driver_adapter) as raw:
            raw.execute("pragma query_only = off")
            # SQLite keeps the text of the statement, and in it the format.
            raw.execute(f"create table if not exists {_NAMES['table']} (/* {FORMAT} */ {_COLUMNS})")
            self.bring_up_to_date(raw)

    def outside(self, driver: Driver) -> AbstractContextManager[Any]:
        return _outside_pool(driver)

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        found = raw.execute("select sql from main.sqlite_master where name = ?", [_NAME]).fetchone()
        if found is not None:
            require_format(_NAMES["table"], found[0])
        return found is not None

    def lacks(self, raw: Any) -> str:
        names = [name for _, name, *_ in raw.execute(f"pragma main.table_info({_NAME})")]
        return lacking(_NAME, names, "delivered_by text", "traceparent text")

    @contextmanager
    def alone(self, source: OutboxDatasource) -> Iterator[bool]:
        """A lock on a file beside the database, which the system releases when its process has ended."""
        path = os.path.realpath(source.url.removeprefix("sqlite:///"))
        with open(f"{path}-outbox", "ab") as file:
            yield _locked(file.fileno())

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _outside_pool(driver: Driver) -> Iterator[Any]:
    with closing(driver.connect()) as raw, translated():
        yield raw
