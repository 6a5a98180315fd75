"""greenlet, or an error that names it where it is not installed."""

from __future__ import annotations

from txpool.errors import ConfigurationError

try:
    from greenlet import getcurrent, greenlet
except ImportError as missing:
    raise ConfigurationError(
        "txpool in an event loop needs greenlet, which is not installed, and nothing was done: "
        "pip install 'txpool[asyncio]'"
    ) from missing

__all__ = ["getcurrent", "greenlet"]
