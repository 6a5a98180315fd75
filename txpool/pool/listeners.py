"""Listeners of a pool: the class that users derive theirs from, and how a pool calls them.

A pool calls its listeners in the thread in which the event happens, and holds no lock of its own meanwhile.
"""

from __future__ import annotations

import logging
from threading import Thread, current_thread
from typing import Any

from txpool.errors import ConfigurationError, PoolTimeout

log = logging.getLogger("txpool.pool")


class PoolListener:
    """What a pool tells its listeners; override what you need. Every method may be called from any thread.

    `pool` is the datasource's name, and `connection` the driver's own connection, to look at: execute nothing on it,
    and do not keep it. The pool waits for each call. An exception is logged, and changes nothing. A `KeyboardInterrupt`
    or `SystemExit` reaches the thread that uses the pool, and the connection is closed; in the pool's own thread it is
    logged.
    """

    def connection_opened(self, pool: str, connection: Any, seconds: float) -> None:
        """A physical connection was opened, which took so long."""

    def connect_failed(self, pool: str, error: BaseException) -> None:
        """The driver could not connect."""

    def connection_closed(self, pool: str, connection: Any) -> None:
        """A physical connection was closed, for whatever reason."""

    def taken(self, pool: str, connection: Any) -> None:
        """A connection is about to be handed to its user."""

    def given_back(self, pool: str, connection: Any, seconds: float) -> None:
        """A connection came back after so long: what its user left open has not been rolled back yet."""

    def checked(self, pool: str, connection: Any) -> None:
        """A connection that had been idle was asked whether it is alive, and is."""

    def check_failed(self, pool: str, connection: Any, error: BaseException) -> None:
        """A connection that had been idle is dead, or did not answer in time (TimeoutError); it will be closed."""

    def reset_failed(self, pool: str, connection: Any, reason: str) -> None:
        """A connection that came back could not be reset; it will be closed."""

    def leak(self, pool: str, connection: Any, seconds: float, holder: str) -> None:
        """A connection is held for longer than pool.leak-threshold; `holder` is the thread, and where it was taken."""

    def lost(self, pool: str, connection: Any, holder: str) -> None:
        """A connection was dropped without being given back; it will be closed."""

    def timeout(self, pool: str, error: PoolTimeout) -> None:
        """Nobody's connection came free in time; `error` is what the user gets."""


class MaintenanceThread(Thread):
    """A pool's own thread, which no listener ends."""


class Listeners(dict[int, PoolListener]):
    """The listeners of one pool, by id: falsy if there are none. Thread-safe without a lock, which a fork could
    leave locked: each step is one operation of a dict.
    """

    def add(self, listener: PoolListener) -> None:
        """Call it from now on; one that is there already is not called twice. ConfigurationError."""
        if not isinstance(listener, PoolListener):
            raise ConfigurationError(
                f"a {type(listener).__name__} is no listener of a pool: derive its class from txpool.PoolListener"
            )
        self.setdefault(id(listener), listener)

    def discard(self, listener: PoolListener) -> None:
        """Do not call it any more."""
        self.pop(id(listener), None)

    def notify(self, event: str, pool: str, *args: Any) -> None:
        """Call the method `event` of each."""
        for listener in list(self.values()):
            try:
                getattr(listener, event)(pool, *args)
            except Exception:
                log.exception("pool %r: %s of a listener failed", pool, event)
            except BaseException:
                if not isinstance(current_thread(), MaintenanceThread):
                    raise
                log.exception("pool %r: %s of a listener failed", pool, event)

    def notify_late(self, event: str, pool: str, *args: Any) -> None:
        """As `notify`, from where nothing may be raised."""
        try:
            self.notify(event, pool, *args)
        except BaseException:
            log.exception("pool %r: %s of a listener failed", pool, event)
