"""Any other database with an XADataSource: what the specification promises is believed, and no more.

It does not tell who it is. So a branch that is gone after an answer that was lost is a heuristic hazard.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from txpool.resources.jdbc.databases.by_xa import DatabaseByXA
from txpool.resources.jdbc.databases.database import Server
from txpool.resources.jdbc.errors import NotSupportedError, OperationalError


class OtherDatabase(DatabaseByXA):
    name = "a database over JDBC"

    def begin_again(self, raw: Any) -> None:
        with suppress(NotSupportedError, OperationalError):  # not every driver has savepoints
            super().begin_again(raw)

    def identify(self, raw: Any, *, writes: bool) -> Server:
        return Server()
