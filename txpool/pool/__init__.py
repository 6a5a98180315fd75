"""The pool of physical connections: see `Pool`, and `Connector` for what it needs of a driver."""

from __future__ import annotations

from txpool.pool.pool import Pool
from txpool.pool.pooled import Connector, Pooled
from txpool.pool.statistics import PoolStatistics

__all__ = ["Connector", "Pool", "PoolStatistics", "Pooled"]
