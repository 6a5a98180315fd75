"""The driver mysqlclient, whose module is MySQLdb."""

from __future__ import annotations

import re
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any, Final

import MySQLdb
import MySQLdb.cursors

from txpool.errors import ConfigurationError, OperationalError
from txpool.resources.deadlines import in_step
from txpool.resources.mysql.driver import MySQLDriver
from txpool.resources.mysql.mysqlclient.connection import MySQLdbRawConnection
from txpool.resources.mysql.mysqlclient.session import MySQLdbSession, SteppedMySQLdbSession
from txpool.resources.mysql.session.address import arguments

_WHOLE_SECONDS: Final = ("connect_timeout", "read_timeout", "write_timeout")
#: The client's library opens another session in silence if this one is lost: what follows would commit by itself.
_RECONNECTS: Final = re.compile(r"^\s*reconnect\s*=\s*(?:[1-9]|on|true|yes)", re.I | re.M)


class MySQLdbDriver(MySQLDriver):
    """MariaDB and MySQL over mysqlclient."""

    module = MySQLdb
    cursor_class = MySQLdb.cursors.Cursor

    @staticmethod
    def open_raw(options: dict[str, Any], timeout: float | None) -> MySQLdbRawConnection:
        if timeout is not None:
            options["connect_timeout"] = min(float(options.get("connect_timeout", 10)), timeout)
        if timeout is not None and in_step():
            options["read_timeout"] = min(float(options.get("read_timeout", timeout)), timeout)
        for name in _WHOLE_SECONDS:
            if name in options:
                options[name] = max(1, ceil(options[name]))
        _require_no_reconnect(str(options.get("read_default_file", "")))
        raw = MySQLdbRawConnection(autocommit=True, **options)
        raw.init_command = options.get("init_command")
        session = SteppedMySQLdbSession if in_step() else MySQLdbSession
        raw.session = session(raw, takes_several=options.get("multi_statements", True))
        return raw

    def _reset_session(self, raw: MySQLdbRawConnection) -> None:
        # The driver has no other way: the server asks for the password again, which no connection keeps.
        options = arguments(self._settings, recovery=self._recovery)
        if "database" not in options:
            raise OperationalError("mysqlclient cannot restore a session that began with no database")
        raw.change_user(options.get("user", ""), options.get("password", ""), options["database"])
        raw.set_character_set(raw.first_character_set)


def _require_no_reconnect(file: str) -> None:
    """ConfigurationError if an option file switches that on; the files that it includes are not looked at."""
    with suppress(OSError):  # the library does not mind, either
        if file and _RECONNECTS.search(Path(file).read_text(errors="replace")):
            raise ConfigurationError(
                f"driver.read_default_file = {file} has reconnect, and what follows a lost connection would be "
                "in no transaction: take it out"
            )
