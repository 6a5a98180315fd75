"""asyncio: the synchronous protocol, whose waits are the loop's. Needs greenlet, of the extra `txpool[asyncio]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txpool.aio.connection import AsyncConnection
    from txpool.config.secrets import Secret
    from txpool.datasource import DataSource


async def aconnect(
    target: str | Path | DataSource,
    timeout: float | None = None,
    *,
    user: str | None = None,
    password: str | Secret | None = None,
) -> AsyncConnection:
    """As connect(), for a task of an event loop: `async with await txpool.aconnect("orders") as conn`.

    Inside an `async with txpool.transaction()` it joins that. Errors: as `connect`; ConfigurationError if greenlet
    is not installed.
    """
    from txpool.aio.connection import connect

    return await connect(target, timeout, user=user, password=password)
