"""Any other database with an XADataSource: what the specification promises is believed, and no more.

It does not tell who it is. So a branch that is gone after an answer that was lost is a heuristic hazard.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from txpool.resources.jdbc.databases.by_xa import DatabaseByXA
from txpool.resources.jdbc.databases.database import DatabaseIdentity
from txpool.resources.jdbc.dbapi.errors import NotSupportedError, OperationalError

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

#: The first words of statements that commit nowhere. DDL does in Oracle, and does not in SQL Server.
_COMMIT_NOTHING: Final = frozenset(
    {"delete", "insert", "merge", "release", "rollback", "savepoint", "select", "update", "values", "with"}
)


class OtherDatabase(DatabaseByXA):
    name = "a database over JDBC"

    def begin_again(self, raw: XaConnection) -> None:
        with suppress(NotSupportedError, OperationalError):  # not every driver has savepoints
            super().begin_again(raw)

    def may_commit(self, raw: XaConnection, statement: str) -> bool:
        word, _ = raw.words_of(statement)
        # Behind a semicolon there may be anything, in a message of several statements.
        return bool(raw.begun) and (word not in _COMMIT_NOTHING or ";" in statement.rstrip("; \n"))

    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        return DatabaseIdentity()
