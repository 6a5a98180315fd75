"""greenlet, or an error that names it where it is not installed."""

from __future__ import annotations

from typing import Any

from txpool.errors import ConfigurationError

try:
    import greenlet as package
except ImportError as missing:
    raise ConfigurationError(
        "txpool in an event loop needs greenlet, which is not installed, and nothing was done: "
        "pip install 'txpool[asyncio]'"
    ) from missing

# Of any type, so that the types are the same where it is not installed.
greenlet: Any = package.greenlet
getcurrent: Any = package.getcurrent
