"""MariaDB and MySQL, over PyMySQL or mysqlclient."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.db.transaction import TransactionManagementError

from txpool.django.sources import AliasClient, with_address
from txpool.django.wrapper import Transactional
from txpool.sql.dialects import MYSQL
from txpool.tm.ambient import make_ambient, restore_ambient

_FOUND_ROWS = 2
_CREATES = re.compile(r"create (?!or replace\b|temporary\b)")


@cache
def wrapper_over(driver: str) -> Any:
    """The class of connections over that driver."""
    module = import_module("pymysql" if driver == "pymysql" else "MySQLdb")
    if find_spec("MySQLdb") is None:
        module.install_as_MySQLdb()  # whose constants Django takes
    from django.db.backends.mysql import base, client, creation
    from django.db.backends.mysql.operations import DatabaseOperations

    class Operations(DatabaseOperations):
        """Django's, where the driver may have read a TIME as an interval."""

        def get_db_converters(self, expression: Any) -> list[Any]:
            converters: list[Any] = super().get_db_converters(expression)
            if expression.output_field.get_internal_type() == "TimeField":
                converters.append(_time_of)
            return converters

        def execute_sql_flush(self, sql_list: list[str]) -> None:
            # Outside of a transaction, which TRUNCATE would commit: MariaDB refuses that within XA.
            with self.connection.cursor() as cursor:
                for statement in sql_list:
                    cursor.execute(statement)

        def last_executed_query(self, cursor: Any, sql: Any, params: Any) -> Any:
            executed = getattr(cursor.cursor.raw, "_executed", None)  # which both drivers have
            return executed.decode(errors="replace") if isinstance(executed, bytes | bytearray) else executed

    class MySQLAliasClient(AliasClient, client.DatabaseClient):
        """Runs mysql."""

    class MySQLAliasCreation(creation.DatabaseCreation):
        """Django's, which copies a test database by mysqldump and mysql."""

        def _clone_db(self, source_database_name: str, target_database_name: str) -> None:
            own = self.connection.settings_dict
            self.connection.settings_dict = with_address(own)
            try:
                super()._clone_db(source_database_name, target_database_name)
            finally:
                self.connection.settings_dict = own

    class MySQLAliasCursor(base.CursorWrapper):
        """Django's, over the cursor of either driver."""

        def execute(self, query: Any, args: Any = None) -> Any:
            with self._integrity():
                return self.cursor.execute(query, args)

        def executemany(self, query: Any, args: Any) -> Any:
            with self._integrity():
                return self.cursor.executemany(query, args)

        @contextmanager
        def _integrity(self) -> Iterator[None]:
            try:
                yield
            except module.OperationalError as error:
                if error.args[0] in self.codes_for_integrityerror:
                    raise module.IntegrityError(*error.args) from error
                raise

    class DatabaseWrapper(Transactional, base.DatabaseWrapper):
        """The connection of an alias over MariaDB or MySQL."""

        Database = module
        client_class = MySQLAliasClient
        creation_class = MySQLAliasCreation
        ops_class = Operations
        no_database = "information_schema"
        # Django counts rows that an UPDATE finds, also if it does not change them; and it reads what others commit.
        session_defaults = {
            "driver_client_flag": str(_FOUND_ROWS),
            "driver_charset": "utf8mb4",
            "transaction_isolation": "read-committed",
        }
        isolation_level = None

        def get_connection_params(self) -> dict[str, Any]:
            return {}

        def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
            connection: Any = self.datasource.connect()
            enlistment = connection.enlistment
            if enlistment is not None and enlistment.datasource is not self.datasource:
                flags = enlistment.datasource.settings.driver_options.get("client_flag", "0")
                if not int(flags) & _FOUND_ROWS:
                    connection.close()
                    raise TransactionManagementError(
                        f"alias {self.alias!r}: a connection of txpool.connect() has begun to work in this transaction "
                        "before the alias, and its session counts rows otherwise than Django. Nothing was done. Work "
                        f"with the alias first, or write driver.client_flag = {_FOUND_ROWS} into the datasource's file."
                    )
            return connection

        def create_cursor(self, name: str | None = None) -> Any:
            return MySQLAliasCursor(self.connection.cursor())

        def _begins_here(self) -> bool:
            self.mysql_server_data
            return True

        def executes_outside(self, statement: Any) -> bool:
            """Whether it creates, which commits by itself, and the transaction has done nothing yet.

            So Django makes the table of a cache, in `atomic`. Only in one that this alias has begun. What removes
            something is refused there, as the database does: it would stay removed if the block rolls back.
            """
            return self._begun is not None and _creates(str(statement)) and self._has_done_nothing()

        def _has_done_nothing(self) -> bool:
            block: Any = self._begun
            begun = block.entered_transaction
            if not begun.active or begun.datasources not in ([], [self.datasource]):
                return False
            enlistment = None if self.connection is None else self.connection.enlistment
            return not begun.datasources or (enlistment is not None and enlistment.is_fresh)

        @contextmanager
        def cursor_outside(self) -> Iterator[Any]:
            token = make_ambient(None)
            try:
                with (
                    closing(self.datasource.connect()) as connection,
                    closing(MySQLAliasCursor(connection.cursor())) as cursor,
                ):
                    yield cursor
            finally:
                restore_ambient(token)

    DatabaseWrapper.__qualname__ = "DatabaseWrapper"
    return DatabaseWrapper


def _creates(statement: str) -> bool:
    """Whether it creates something, replaces nothing, and is the only statement of its text."""
    return _CREATES.match(MYSQL.first_words(statement)) is not None and ";" not in statement.rstrip("; \n")


def _time_of(value: Any, expression: Any, connection: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return (datetime.datetime.min + value).time()
    return value
