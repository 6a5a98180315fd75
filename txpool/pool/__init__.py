"""The pool of physical connections: `Pool`, and the protocol `Connector` that a driver implements for it."""

from __future__ import annotations

from txpool.pool.listeners import PoolListener
from txpool.pool.numbers import samples  # noqa: F401 - registers the pools as a source of metrics
from txpool.pool.numbers.statistics import PoolStatistics
from txpool.pool.pool import Pool
from txpool.pool.pooled import Connector, Pooled

__all__ = ["Connector", "Pool", "PoolListener", "PoolStatistics", "Pooled"]
