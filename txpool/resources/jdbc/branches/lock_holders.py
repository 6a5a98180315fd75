"""Which prepared branches the sessions of a database over JDBC wait for, if txpool can ask that database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txpool.resources.driver.driver import Driver
from txpool.resources.recovery_access import PreparedBranch

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings


class JdbcLockHolders:
    """As `LockHolders`."""

    certain = True

    def __init__(self, settings: DataSourceSettings, driver: Driver) -> None:
        self._driver = driver

    def holders(self, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        raw = self._driver.connect()
        try:
            self.certain = raw.database.knows_holders
            found = raw.database.lock_holders(raw, waiting)
            # Behind a balancer the session may be another server's.
            return [held if each.identity == raw.identity else [] for each, held in zip(waiting, found, strict=True)]
        finally:
            self._driver.close(raw)
