"""The driver mysqlclient, whose module is MySQLdb."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import MySQLdb
import MySQLdb.cursors

from txpool.errors import OperationalError
from txpool.resources.mysql.address import arguments
from txpool.resources.mysql.driver import MySQLDriver
from txpool.resources.mysql.mysqlclient.connection import MySQLdbConnection
from txpool.resources.mysql.mysqlclient.session import MySQLdbSession

_WHOLE_SECONDS: Final = ("connect_timeout", "read_timeout", "write_timeout")


class MySQLdbDriver(MySQLDriver):
    """MariaDB and MySQL over mysqlclient."""

    module = MySQLdb
    cursor_class = MySQLdb.cursors.Cursor

    @staticmethod
    def open_raw(options: dict[str, Any], timeout: float | None) -> MySQLdbConnection:
        if timeout is not None:
            options["connect_timeout"] = min(float(options.get("connect_timeout", 10)), timeout)
        for name in _WHOLE_SECONDS:
            if name in options:
                options[name] = max(1, ceil(options[name]))
        raw = MySQLdbConnection(autocommit=None, **options)
        raw.init_command = options.get("init_command")
        raw.session = MySQLdbSession(raw, takes_several=options.get("multi_statements", True))
        return raw

    def _reset_session(self, raw: MySQLdbConnection) -> None:
        # The driver has no other way: the server asks for the password again, which no connection keeps.
        options = arguments(self._settings, recovery=self._recovery)
        if "database" not in options:
            raise OperationalError("mysqlclient cannot restore a session that began with no database")
        raw.change_user(options.get("user", ""), options.get("password", ""), options["database"])
        raw.set_character_set(raw.first_character_set)
