"""The numbers of a pool, and of all pools of this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals. `takes` and `use_seconds` count only connections that are gone. Changed under the pool's lock."""

    takes: int = 0
    use_seconds: float = 0.0
    waits: int = 0
    wait_seconds: float = 0.0
    timeouts: int = 0
    created: int = 0
    create_seconds: float = 0.0
    destroyed: int = 0
    connect_failures: int = 0
    checks: int = 0
    check_failures: int = 0
    reset_failures: int = 0
    lost: int = 0
    leaks: int = 0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment, and its totals since it was made (in a forked child: since the fork)."""

    name: str
    """The name of the pool, which is its datasource's."""
    min_size: int
    """How many connections it tries to keep open."""
    max_size: int
    """How many it opens at most."""
    size: int
    """How many connections there are: idle, taken, being opened, checked or reset."""
    idle: int
    """How many connections are idle."""
    taken: int
    """How many are taken."""
    waiting: int
    """How many threads wait for one."""
    enabled: bool
    """Whether connections are kept for the next user; false with pool.enabled = false."""
    suspended: bool
    """Whether it hands out no connection until it is resumed."""
    closed: bool
    """Whether it was closed."""
    failure: str | None
    """The driver's last error of connecting, without passwords; None if the last connect has succeeded."""
    takes: int
    """Total: how often one was taken."""
    use_seconds: float
    """Total seconds: how long those that were given back had been held."""
    waits: int
    """Total: how many takes had to wait."""
    wait_seconds: float
    """Total seconds: how long takes had to wait, also those that got none."""
    timeouts: int
    """Total: how many takes got none in time."""
    created: int
    """Total: connections opened."""
    create_seconds: float
    """Total seconds: how long the opening took."""
    destroyed: int
    """Total: connections closed, for whatever reason."""
    connect_failures: int
    """Total: how often the driver could not connect."""
    checks: int
    """Total: how often an idle connection was asked whether it is alive."""
    check_failures: int
    """Total: connections that were found dead by such a check, or did not answer it in time."""
    reset_failures: int
    """Total: connections that could not be reset when they were given back."""
    lost: int
    """Total: connections that were dropped without being given back."""
    leaks: int
    """Total: connections reported for being held longer than the leak threshold."""
