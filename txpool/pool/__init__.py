"""The pool of physical connections: see `Pool`, and `Connector` for what it needs of a driver."""

from __future__ import annotations

from txpool.pool import samples  # noqa: F401 - has the pools among the sources of metrics
from txpool.pool.pool import Pool
from txpool.pool.pooled import Connector, Pooled
from txpool.pool.statistics import PoolStatistics

__all__ = ["Connector", "Pool", "PoolStatistics", "Pooled"]
