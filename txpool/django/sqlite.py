"""SQLite."""

from __future__ import annotations

from typing import Any

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3._functions import register as register_functions
from django.db.transaction import TransactionManagementError

from txpool.django.wrapper import Transactional


class DatabaseWrapper(Transactional, base.DatabaseWrapper):
    """The connection of an alias over SQLite.

    Django changes a table there with foreign keys off, which a pragma does, and that only outside of a transaction, on
    the session that then begins one. Such work is the database's own transaction, and no part of txpool's.
    """

    session_defaults = {"driver_detect_types": "3"}  # noqa: RUF012
    transaction_mode = None
    init_commands = ()

    def get_connection_params(self) -> dict[str, Any]:
        return {}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection: Any = self.datasource.connect()
        try:
            self._set_up(connection.raw_connection())
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, raw: Any) -> None:
        """What Django's own connect() does on a session, which keeps it until it is opened anew."""
        if not vars(raw).get("django"):
            register_functions(raw)
            raw.django = True
        foreign_keys = "pragma foreign_keys"
        if not raw.in_transaction:
            raw.execute(f"{foreign_keys} = on")
            raw.execute("pragma legacy_alter_table = off")
        elif raw.execute(foreign_keys).fetchone() == (0,):
            raise TransactionManagementError(
                f"alias {self.alias!r}: a connection of txpool.connect() has begun to work in this transaction before "
                "the alias, and without foreign keys, which cannot be switched on now. Nothing was done. Work with the "
                "alias first, or write pool.initial-sql = pragma foreign_keys = on into the datasource's file."
            )

    def disable_constraint_checking(self) -> bool:
        disabled = bool(super().disable_constraint_checking())
        self._without_constraints = disabled and self._sync() is None
        return disabled

    def enable_constraint_checking(self) -> None:
        self._without_constraints = False
        super().enable_constraint_checking()

    _without_constraints = False

    def _begins_here(self) -> bool:
        return not self._without_constraints
