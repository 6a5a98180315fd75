"""The log's own sessions: how they are opened, what is set in them, and what their loss means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.log.tables import NODE, decided, gtrid_of
from tests.support.log_places import LogPlace, PostgreSQLPlace
from txpool.config.secrets import Secret
from txpool.errors import ConfigurationError, LogError
from txpool.log import Refused, SqlLog, open_log
from txpool.log.sql.server import log_server

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def place(databases: Databases) -> LogPlace:
    """What is here is PostgreSQL's own."""
    return PostgreSQLPlace(databases)


@pytest.mark.parametrize("inside", [True, False], ids=["in the url", "as a secret"])
def test_no_error_and_no_text_shows_the_password(databases: Databases, log: SqlLog, inside: bool) -> None:
    url = databases.url("one")
    options: dict[str, Any] = {}
    if inside:
        url = url.replace("@", ":hunter2hunter2@")
    else:
        options = {"password": Secret("hunter2hunter2")}
    with pytest.raises(LogError, match="password authentication failed") as caught:
        open_log(url, node=NODE, **options)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or error.__context__
    good = url.replace("hunter2hunter2", databases.server.password) if inside else databases.url("one")
    opened = SqlLog(good, node=NODE, password=None if inside else Secret(databases.server.password))
    assert opened.incarnation
    assert databases.server.password not in repr(opened) + repr(vars(opened))
    opened.close()


def test_a_url_that_libpq_cannot_read_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"log\.url has a parameter that PostgreSQL does not know"):
        open_log("postgresql://h/db?x=1", node=NODE)


def test_a_server_that_is_not_there_is_a_definite_failure(databases: Databases, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    databases.server.stop()
    try:
        with pytest.raises(Refused, match=f"{gtrid} was not decided, and rolls back.*nothing was written"):
            log.record(gtrid, [])
        with pytest.raises(LogError, match="cannot be used"):
            log.incarnation
        log.forget(gtrid)  # recovery does it again
    finally:
        databases.server.start()
    assert decided(databases) == set()


def test_the_session_is_as_the_log_needs_it_whatever_the_database_has_configured(databases: Databases) -> None:
    for setting in (
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "statement_timeout = '1s'",
        "idle_session_timeout = '1s'",
    ):
        databases.execute("one", f"ALTER DATABASE one SET {setting}")
    server = log_server(databases.url("one"), password=Secret(databases.server.password), lock_timeout=2.5)
    server.create()

    def shown(name: str) -> Any:
        return raw.execute("SELECT current_setting(%s)", [name]).fetchone()

    with server.connect() as raw:
        assert shown("synchronous_commit") == ("on",)
        assert shown("transaction_isolation") == ("read committed",)
        assert shown("statement_timeout") == ("0",)
        assert shown("idle_session_timeout") == ("0",)
        assert shown("lock_timeout") == ("2500ms",)
        assert [shown(f"tcp_keepalives_{name}") for name in ("idle", "interval", "count")] == [("30",), ("10",), ("3",)]
    databases.execute("one", "ALTER DATABASE one SET synchronous_commit = remote_apply")
    with server.connect() as raw:
        assert shown("synchronous_commit") == ("remote_apply",)
    # How soon the server notices that a coordinator's host has vanished.
    url = databases.url("one") + "?keepalives_idle=7&keepalives_count=2"
    with log_server(url, password=Secret(databases.server.password)).connect() as raw:
        assert [shown(f"tcp_keepalives_{name}") for name in ("idle", "interval", "count")] == [("7",), ("10",), ("2",)]


def test_a_connection_that_was_lost_while_idle_is_not_mistaken_for_an_unknown_decision(
    databases: Databases, log: SqlLog
) -> None:
    gtrid = gtrid_of(log)
    databases.rows(
        "one",
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'txpool log'",
    )
    log.record(gtrid, [])
    assert decided(databases) == {gtrid}
