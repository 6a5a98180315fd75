"""Recovery's access to the branches that are prepared over JDBC."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from txpool.resources.branches.recovery import EndsBranches
from txpool.resources.jdbc.branches.phase_two import JdbcPhaseTwo
from txpool.resources.recovery_access import PreparedBranch


class JdbcBranchRecovery(EndsBranches):
    """Recovery's access to prepared branches. Thread-safe: every method opens a connection and closes it, but for
    `phase_two`, whose branches share a few.
    """

    command = JdbcPhaseTwo

    def __init__(self, driver: Any, user: str | None) -> None:
        super().__init__(driver)
        #: The login of the datasource's own sessions, if these connections log in as another.
        self._user = user

    def identity(self) -> str:
        with _opened(self._driver) as raw:
            return str(raw.identity)

    def logins(self) -> frozenset[str]:
        with _opened(self._driver) as raw:
            role = raw.role if self._user is None else raw.database.role_of(raw, self._user)
            return frozenset({role} if role else ())

    def recover(self) -> list[PreparedBranch]:
        with _opened(self._driver) as raw:
            found: list[PreparedBranch] = raw.database.listed(raw)
            return found


class _opened:  # noqa: N801 - a context manager
    """A connection of the driver's, in autocommit mode; closed behind."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __enter__(self) -> Any:
        self._raw = self._driver.connect()
        try:
            self._raw.autocommit = True
        except BaseException:
            self._driver.close(self._raw)
            raise
        return self._raw

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._driver.close(self._raw)
