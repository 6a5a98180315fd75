"""Which prepared branches the sessions of a database over JDBC wait for, if txpool can ask that database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txpool.resources.driver import Driver
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
            # Behind a balancer the session may be another server's.
            found = raw.database.lock_holders(raw, [each for each in waiting if each.identity == raw.identity])
            return [next(found, []) if each.identity == raw.identity else [] for each in waiting]
        finally:
            self._driver.close(raw)
