"""The sessions of a datasource's pool: each runs `pool.initial-sql` once it is open, and again once it was reset.

Only the pool's own sessions do. Recovery, and a coordinator that ends a branch on a connection of its own, log in and
run nothing: what they execute must not depend on what an application has set.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from txpool.config.secrets import Secret, hide_in
from txpool.errors import translated
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.making import make_driver

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.driver.raw import RawConnection


def sessions_of(settings: DataSourceSettings, driver: Driver | None = None) -> Any:
    """The Connector of a datasource's pool: its driver, or one that runs `pool.initial-sql` beside it."""
    driver = driver or make_driver(settings)
    statement = settings.pool_initial_sql
    if statement is None:
        return driver
    references = settings.properties.entry("pool.initial-sql").references
    return InitialisedSessions(driver, statement, (*settings.secrets, *references))


class SessionStarter(Protocol):
    """A driver that runs an initial statement by itself, and whose `reset` runs it again: it has `start_session`."""

    def start_session(self, raw: RawConnection, statement: str, timeout: float | None) -> None:
        """Run the statement on a new connection, and commit what it leaves open. The driver's own error.

        `timeout` is in seconds.
        """


class InitialisedSessions:
    """A Connector of the pool, over a driver: what each of its connections runs first. Thread-safe.

    The server's errors quote the statement: the secrets in it are hidden.
    """

    def __init__(self, driver: Driver, statement: str, secrets: tuple[Secret, ...] = ()) -> None:
        self._driver = driver
        begins = getattr(driver, "start_session", None) is not None
        self._starter = cast(SessionStarter, driver) if begins else None
        self._statement = statement
        self._secrets = secrets
        self.is_clean = driver.is_clean
        self.ping = driver.ping
        self.close = driver.close

    def connect(self, *, timeout: float | None = None) -> Any:
        """Open a connection, and run the statement. The driver's own error, which says where the statement failed."""
        until = None if timeout is None else monotonic() + timeout
        raw = self._driver.connect(timeout)
        try:
            self._start(raw, None if until is None else until - monotonic())
        except BaseException:
            self._driver.close(raw)
            raise
        return raw

    def reset(self, raw: RawConnection, timeout: float | None = None) -> None:
        """Reset the connection, and run the statement again. The driver's own error."""
        try:
            self._driver.reset(raw, timeout)
        except self._driver.module.Error as error:
            hide_in(error, self._secrets)
            raise
        if self._starter is None:
            self._start(raw, timeout)

    def _start(self, raw: RawConnection, timeout: float | None) -> None:
        driver = self._driver
        try:
            if self._starter is not None:
                self._starter.start_session(raw, self._statement, timeout)
            else:
                with translated():
                    driver.execute(raw, self._statement).close()
                    if driver.dialect.in_transaction(raw):
                        raw.commit()
        except driver.module.Error as error:
            hide_in(error, self._secrets)
            error.args = (f"pool.initial-sql failed: {error}", *error.args[1:])
            raise
