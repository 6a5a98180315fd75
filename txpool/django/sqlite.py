"""SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from django.db.backends.sqlite3 import base, creation
from django.db.backends.sqlite3._functions import register as register_functions
from django.db.transaction import TransactionManagementError

from txpool.django.sources import forget
from txpool.django.wrapper import Transactional


class SQLiteAliasCursor:
    """Django's cursor, which takes %s for a parameter, over the datasource's."""

    convert_query = base.SQLiteCursorWrapper.convert_query

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, query: str, params: Any = None) -> Any:
        if params is None:
            return self._cursor.execute(query)
        return self._cursor.execute(self._converted(query, params), params)

    def executemany(self, query: str, param_list: Any) -> Any:
        rows = iter(param_list)
        first = [*islice(rows, 1)]
        return self._cursor.executemany(self._converted(query, first[0] if first else ()), chain(first, rows))

    def _converted(self, query: str, params: Any) -> Any:
        return self.convert_query(query, param_names=[*params] if isinstance(params, Mapping) else None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class DatabaseCreation(creation.DatabaseCreation):
    """Django's, which removes the file of a test database."""

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        forget(self.connection.settings_dict, test_database_name)  # what is to be done in it is done now, or never
        super()._destroy_test_db(test_database_name, verbosity)


class DatabaseWrapper(Transactional, base.DatabaseWrapper):
    """The connection of an alias over SQLite.

    Django changes a table there with foreign keys off, which a pragma does, and that only outside of a transaction, on
    the session that then begins one. Such work is the database's own transaction, and no part of txpool's.
    """

    creation_class = DatabaseCreation
    session_defaults = {"driver_detect_types": "3"}
    transaction_mode = None
    init_commands = ()

    def get_connection_params(self) -> dict[str, Any]:
        return {}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection: Any = self.datasource.connect()
        self._without_constraints = False
        try:
            self._set_up(connection.raw_connection())
        except BaseException:
            connection.close()
            raise
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        return SQLiteAliasCursor(self.connection.cursor())

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
