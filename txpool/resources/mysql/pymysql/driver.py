"""The driver PyMySQL."""

from __future__ import annotations

from typing import Any, Final

import pymysql
import pymysql.cursors

from txpool.errors import OperationalError
from txpool.resources.deadlines import in_step
from txpool.resources.mysql.driver import MySQLDriver
from txpool.resources.mysql.pymysql.connection import PyMySQLRawConnection
from txpool.resources.mysql.pymysql.session import PyMySQLSession
from txpool.resources.mysql.pymysql.stepped import SteppedPyMySQLConnection

_MOST_CONNECT_TIMEOUT: Final = 31536000.0


class PyMySQLDriver(MySQLDriver):
    """MariaDB and MySQL over PyMySQL."""

    module = pymysql
    cursor_class = pymysql.cursors.Cursor

    @staticmethod
    def open_raw(options: dict[str, Any], timeout: float | None) -> PyMySQLRawConnection:
        limit = options.pop("read_timeout", None)
        if timeout is not None:
            options["connect_timeout"] = min(float(options.get("connect_timeout", 10)), timeout)
            options["read_timeout"] = min(timeout, _MOST_CONNECT_TIMEOUT)
        raw = (SteppedPyMySQLConnection if in_step() else PyMySQLRawConnection)(autocommit=True, **options)
        raw.set_read_timeout(limit)
        raw.session = PyMySQLSession(raw)
        return raw

    def _reset_session(self, raw: PyMySQLRawConnection) -> None:
        raw.reset_session()
        if raw.database_name:
            raw.select_db(raw.database_name)
        elif raw.session.run("select database()") != ((None,),):
            raise OperationalError("the session has chosen a database, and began with none")
