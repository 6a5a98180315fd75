"""asyncio: the synchronous protocol, whose waits are the loop's. Needs greenlet, of the extra `txpool[asyncio]`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    return await _opening()(target, timeout, user=user, password=password)


@cache
def _opening() -> Callable[..., Coroutine[Any, Any, AsyncConnection]]:
    from txpool.aio.connection import connect  # which needs greenlet

    return connect
