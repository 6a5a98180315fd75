"""What a program does with a datasource's pool while it runs: sizes, flush, suspension, listeners, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.pool.listeners import PoolListener
    from txpool.pool.numbers.statistics import PoolStatistics
    from txpool.pool.pool import Pool
    from txpool.resources.driver.driver import Driver

#: How `flush` treats the connections that are taken.
FlushMode = Literal["all", "idle", "graceful"]
FLUSH_MODES: Final[tuple[str, ...]] = get_args(FlushMode)
#: Seconds that one cancel may take, for a server that cannot be reached.
_CANCEL_TIMEOUT = 1.0


class PoolAdministration:
    """The part of a DataSource that is about its pool alone. Thread-safe."""

    pool: Pool[Any]
    driver_adapter: Driver

    def statistics(self) -> PoolStatistics:
        """The pool's current numbers, and its totals."""
        return self.pool.statistics()

    def resize(self, min_size: int, max_size: int) -> None:
        """Change pool.min-size and pool.max-size of this process, until it ends.

        Above the new maximum, idle connections are closed now, and taken ones when they come back. ConfigurationError
        if the sizes do not fit.
        """
        self.pool.resize(min_size, max_size)

    def flush(self, how: FlushMode = "graceful") -> None:
        """Close physical connections; the pool opens others if it needs them. ConfigurationError for another word.

        "idle" closes those that are idle now. "graceful" also closes those that are taken, each when it comes back.
        "all" does that, and has the server cancel what plain connections, which are in no transaction of ours, execute
        now: their users get the driver's error. No mode cuts off a connection that is taken. One in a transaction is
        left alone until that has ended, since it may have been prepared.
        """
        if how not in FLUSH_MODES:
            raise ConfigurationError(f"flush({how!r}): write one of {', '.join(FLUSH_MODES)}")
        if how == "idle":
            self.pool.close_idle()
            return
        self.pool.drain()
        if how == "all":
            for pooled in self.pool.taken():
                if pooled.plain:
                    self.driver_adapter.cancel(pooled.raw, _CANCEL_TIMEOUT)

    def suspend_pool(self) -> None:
        """Hand out no connection until `resume_pool`: connect() waits, for pool.max-wait at most, and then PoolTimeout.

        Connections that are taken go on, and transactions with them, as far as they need no further datasource of
        which the pool is suspended. It has nothing to do with txpool.suspend(), which is about a transaction.
        """
        self.pool.suspend()

    def resume_pool(self) -> None:
        """End `suspend_pool`: those who wait are served first, in their order."""
        self.pool.resume()

    def add_listener(self, listener: PoolListener) -> None:
        """Tell the listener of what happens in the pool from now on. ConfigurationError if it is no PoolListener."""
        self.pool.add_listener(listener)

    def remove_listener(self, listener: PoolListener) -> None:
        """Tell the listener nothing more; nothing happens if it was not there."""
        self.pool.remove_listener(listener)
