"""Connecting for a check, with a timeout, and with advice for each way in which it can fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError, described
from txpool.findings.finding import Finding, NotConnected, failure
from txpool.resources.driver.making import make_driver

_CONNECT_TIMEOUT_SECONDS = "10"  # if neither the url nor driver.connect_timeout has one

# Patterns of the messages with which servers and libpq refuse a connection, and the advice. The message of a server
# with another language than English is shown without advice.
_REFUSALS = (
    (
        r"password authentication failed|[Aa]uthentication failed",
        "correct user and password; an administrator sets one by ALTER ROLE {user} LOGIN PASSWORD '…';",
    ),
    (r"no password supplied|password is required", "write password = ${{env:NAME}} into the file, and set NAME"),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "add a line such as `host {database} {user} samenet scram-sha-256` to pg_hba.conf, then SELECT "
        "pg_reload_conf();",
    ),
    (r'database ".*" does not exist', "correct the url, or CREATE DATABASE {database} OWNER {user};"),
    (r'role ".*" does not exist', "correct the user, or CREATE ROLE {user} LOGIN PASSWORD '…';"),
    (r"is not permitted to log in", "ALTER ROLE {user} LOGIN;"),
    (r"permission denied for database", "GRANT CONNECT ON DATABASE {database} TO {user};"),
    (r"too many connections for role", "close some, or ALTER ROLE {user} CONNECTION LIMIT 100;"),
    (r"too many connections for database", "close some, or ALTER DATABASE {database} CONNECTION LIMIT 100;"),
    (
        r"too many clients|remaining connection slots",
        "close some, lower pool.max-size, or raise max_connections and restart the server",
    ),
    (r"starting up|shutting down|not yet accepting|in recovery mode", "wait, and check again"),
    (r"[Cc]onnection refused", "nothing listens there: start the server, or correct host and port in the url"),
    (r"failed to resolve|could not translate host name", "no such host is known here: correct the url"),
    (r"timeout expired|timed out|No route to host|unreachable", "check the address, and firewalls on the way"),
    (r"SSL|certificate", "correct sslmode and sslrootcert in the url, or the server's ssl settings"),
    (
        r"session is read-only",
        "name the primary in the url; if it is the primary, default_transaction_read_only is on there for this user: "
        "write target_session_attrs=primary, or ALTER ROLE … SET default_transaction_read_only = off",
    ),
    (r"session is not read-only|is not in hot standby|is in hot standby", "name the primary in the url"),
)


@contextmanager
def connected(settings: DataSourceSettings, *, recovery: bool = False) -> Iterator[Any]:
    """A raw connection of the datasource's driver, closed at the end. Errors: NotConnected, ConfigurationError."""
    # The check tries what recovery and the program's other transactions do, too.
    settings = replace(_with_connect_timeout(settings), transaction_isolation=None, transaction_read_only=False)
    driver = make_driver(settings, recovery=recovery)
    try:
        raw = driver.connect()
    except ConfigurationError:
        raise
    except psycopg.ProgrammingError as error:  # libpq cannot parse the url or an option
        raise ConfigurationError(f"{settings.url} and driver.*: {described(error)}") from error
    except Exception as error:
        raise NotConnected(_diagnosed(settings, error, recovery)) from error
    try:
        yield raw
    finally:
        driver.close(raw)


def user_of(settings: DataSourceSettings, *, recovery: bool = False) -> str:
    """The user that the file names, with `recovery` recovery.user if there is one; empty if the file names none."""
    if recovery and settings.recovery_user:
        return settings.recovery_user
    return settings.user or str(_in_url(settings).get("user", ""))


def _in_url(settings: DataSourceSettings) -> dict[str, Any]:
    try:
        return conninfo_to_dict(settings.url)
    except psycopg.Error:
        return {}


def _with_connect_timeout(settings: DataSourceSettings) -> DataSourceSettings:
    options = settings.driver_options
    if "connect_timeout" in {*options, *_in_url(settings)}:
        return settings
    return replace(settings, driver_options={"connect_timeout": _CONNECT_TIMEOUT_SECONDS, **options})


def _diagnosed(settings: DataSourceSettings, error: Exception, recovery: bool) -> Finding:
    user = user_of(settings, recovery=recovery)
    label = f"recovery.user {user}" if recovery and settings.recovery_user else user
    return diagnosed(settings.url, error, label=label, user=user, database=str(_in_url(settings).get("dbname", "")))


def diagnosed(url: str, error: BaseException, *, label: str = "", user: str = "", database: str = "") -> Finding:
    """The finding of a failed connect, with advice; `label` is how the finding calls the user."""
    message = " ".join(str(error).split()) or type(error).__name__
    found = f"cannot connect to {url}{f' as {label}' if label else ''}: {message}"
    names = {"user": quoted(user or "app"), "database": quoted(database or user or "orders")}
    for pattern, advice in _REFUSALS:
        if re.search(pattern, message):
            return failure("connection", found, do=advice.format(**names))
    return failure("connection", found, do="correct what the message complains of, and check again")


def quoted(name: str) -> str:
    """A name in SQL, in quotes if it needs them."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
