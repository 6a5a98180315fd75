"""The connections of a log in MariaDB or MySQL: over PyMySQL or mysqlclient, whichever is installed."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from txpool.errors import ConfigurationError
from txpool.resources.mysql.driver import MySQLDriver
from txpool.resources.mysql.session.address import KEEPALIVES, PORT, TLS_FILES, TLS_FLAGS, database_in

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

#: The drivers, the first one that is installed is used; each with the extra that installs it.
DRIVERS: Final = (
    ("txpool.resources.mysql.pymysql.driver:PyMySQLDriver", "txpool[mariadb]"),
    ("txpool.resources.mysql.mysqlclient.driver:MySQLdbDriver", "txpool[mysqlclient]"),
)
# Unless the url sets them: seconds, and milliseconds for the last one. They bound the wait for a server whose host has
# vanished.
_KEEPALIVES: Final = dict(zip(KEEPALIVES, (30, 10, 3, 60_000), strict=True))
_OPTIONS: Final = dict(
    zip(KEEPALIVES, ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"), strict=True)
)
_YEAR: Final = 31_536_000  # seconds: the longest wait_timeout
# The settings that each session needs, whatever the account or the server has configured. A lease is idle for as long
# as its process lives. No statement may be ended by time: what it has written would be unknown.
_SESSION: Final = (
    "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', sql_safe_updates = 0, "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"wait_timeout = {_YEAR}, innodb_lock_wait_timeout = {{lock}}, lock_wait_timeout = {{lock}}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
)
_MARIADB_SESSION: Final = (
    "SET SESSION max_statement_time = 0, idle_transaction_timeout = 0, idle_write_transaction_timeout = 0"
)


def find_driver() -> type[MySQLDriver]:
    """The driver that is installed. ConfigurationError if none is."""
    for where, _ in DRIVERS:
        module, _, name = where.partition(":")
        with suppress(ImportError):
            driver: type[MySQLDriver] = getattr(import_module(module), name)
            return driver
    extras = " or ".join(f"pip install '{extra}'" for _, extra in DRIVERS)
    raise ConfigurationError(f"log.url is in MariaDB or MySQL, and no driver of theirs is installed: {extras}")


class Connecting:
    """Opens raw connections, in autocommit mode, as a log's url says."""

    def __init__(self, url: str, user: str | None, lock_timeout: float) -> None:
        """ConfigurationError, which shows no secret."""
        self.driver = find_driver()
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query))
        database = database_in(parts)
        if not database:
            raise ConfigurationError(f"log.url = {url}: it names no database: write mysql://user@host:3306/database")
        self.database = database
        self._options: dict[str, Any] = {"database": database, "charset": "utf8mb4", "connect_timeout": 10.0}
        if parts.hostname:
            self._options["host"] = unquote(parts.hostname)
        self._options["port"] = parts.port or PORT
        login = user or unquote(parts.username or "")
        if login:
            self._options["user"] = login
        if "unix_socket" in given:
            self._options["unix_socket"] = given.pop("unix_socket")
        given.pop("charset", None)  # the log has its own
        self._options |= _tls(given, self.driver.module.__name__)
        try:
            self._options["connect_timeout"] = float(given.pop("connect_timeout", 10))
            self._keepalives = _KEEPALIVES | {name: int(value) for name, value in given.items() if name in _KEEPALIVES}
        except ValueError:
            raise ConfigurationError(f"log.url = {url}: its times are whole numbers") from None
        self._lock_timeout = max(1, ceil(lock_timeout))

    def connect(self, password: str | None, timeout: float | None) -> MySQLRawConnection:
        """A raw connection, not configured yet. The driver's errors."""
        options = dict(self._options)
        if password is not None:
            options["password"] = password
        # The driver's own connect_timeout ends with TCP's handshake: the server's greeting is waited for, too.
        limit = options["connect_timeout"]
        raw = self.driver.open_raw(options, limit if timeout is None else min(timeout, limit))
        raw.session_number = int(raw.thread_id())
        raw.is_mariadb = "mariadb" in str(raw.get_server_info()).lower()
        if "unix_socket" not in options:
            _keep_alive(raw.fileno(), self._keepalives)
        return raw

    def configure(self, raw: MySQLRawConnection, until: float | None) -> None:
        """Let the session be as the log needs it. The driver's errors."""
        commands = [each.format(lock=self._lock_timeout) for each in _SESSION]
        if raw.is_mariadb:
            commands.append(_MARIADB_SESSION)
        raw.session.send(*commands)
        for answer in raw.session.receive(until):
            if answer.error is not None:
                raise answer.error


def _tls(given: Mapping[str, str], module: str) -> dict[str, Any]:
    """What a url says of TLS, as the driver takes it."""
    flags = {name: given[name].lower() in ("true", "on", "1") for name in TLS_FLAGS if name in given}
    files = {name: given[name] for name in TLS_FILES if name in given}
    if module == "pymysql":
        return {**files, **flags} | ({"ssl_verify_cert": True} if "ssl_ca" in files else {})
    if flags.get("ssl_disabled"):
        return {"ssl_mode": "DISABLED"}
    mode = "VERIFY_IDENTITY" if flags.get("ssl_verify_identity") else "VERIFY_CA" if "ssl_ca" in files else "PREFERRED"
    return {"ssl_mode": mode, "ssl": {name.removeprefix("ssl_"): path for name, path in files.items()}}


def _keep_alive(descriptor: int, values: Mapping[str, int]) -> None:
    with socket.socket(fileno=socket.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, option in _OPTIONS.items():
            same.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), values[name])
