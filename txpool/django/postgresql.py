"""PostgreSQL over psycopg 3."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.backends.postgresql import base, client
from django.db.backends.postgresql.psycopg_any import IsolationLevel, get_adapters_template

from txpool.django.sources import AliasClient
from txpool.django.wrapper import Transactional


class PostgreSQLAliasClient(AliasClient, client.DatabaseClient):
    """Runs psql."""


class DatabaseWrapper(Transactional, base.DatabaseWrapper):
    """The connection of an alias over PostgreSQL."""

    client_class = PostgreSQLAliasClient
    no_database = "postgres"
    isolation_level = IsolationLevel.READ_COMMITTED

    def defaults(self) -> dict[str, str]:
        defaults = {"driver_prepare_threshold": "none", "driver_client_encoding": "UTF8"}
        zone = self.timezone_name
        # Else each connection sets it, by a statement of its own.
        if zone and "'" not in zone:
            defaults["pool_initial_sql"] = f"set time zone '{zone}'"
        return defaults

    @property
    def pool(self) -> None:
        """Django's own: the datasource has one."""
        return

    def get_connection_params(self) -> dict[str, Any]:
        return {}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection: Any = self.datasource.connect()
        try:
            connection.use_adapters(get_adapters_template(settings.USE_TZ, self.timezone))
            binding = self.settings_dict["OPTIONS"].get("server_side_binding")
            connection.cursor_factory = base.ServerBindingCursor if binding is True else base.Cursor
        except BaseException:
            connection.close()
            raise
        return connection

    def _configure_connection(self, connection: Any) -> bool:
        # Without a commit of its own: inside a transaction it has none, and outside it is in autocommit mode.
        super()._configure_connection(connection)
        return False
