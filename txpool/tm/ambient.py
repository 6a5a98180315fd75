"""The ambient transaction of a thread or task: the one that its statements are a part of.

It lives in a ContextVar. An asyncio task inherits the one that its creator had; a new thread and a forked child start
with none. An interrupt may keep a block from its end: whoever would work in its transaction later finds out by `live`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from types import FrameType
from typing import TYPE_CHECKING

from txpool.jobs import spark
from txpool.jobs.properties import publish
from txpool.tm.completion import dropped
from txpool.tm.completion.status import OPEN
from txpool.tm.rules.extent import DISMISSED, GONE, enters_again, is_over

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

#: For code that must set it without the job properties of Spark (`make_ambient` sets those as well).
ambient_variable: ContextVar[Transaction | None] = ContextVar("txpool.transaction", default=None)

#: Same as `current`, without the price of a Python call. A function that a user ships to Spark can refer to `current`,
#: and could not refer to this.
ambient: Callable[[], Transaction | None] = ambient_variable.get


def current() -> Transaction | None:
    """The ambient transaction of this thread or task, or None. One whose block is over is none, and rolls back."""
    ambient = ambient_variable.get()
    return ambient if ambient is None or ambient.extent is None else live(ambient)


def live(ambient: Transaction, entering: FrameType | None = None) -> Transaction | None:
    """The ambient transaction, or, if its block is over, the one around that: the former then rolls back.

    `entering` is the frame that begins another block; what rolls back is awaited for it, for a few seconds.
    """
    while (extent := ambient.extent) is not None and (
        is_over(extent) or (entering is not None and enters_again(extent, entering, entering.f_lasti))
    ):
        if extent is DISMISSED:
            ambient_variable.set(None)
            tell_jobs(None, ambient)
            return None
        if ambient.status in OPEN:
            dropped.roll_back_abandoned(ambient, _LEFT)
        token = ambient.token
        try:
            if token is not None:
                ambient_variable.reset(token)
            else:  # an interrupt has kept it from being noted
                ambient_variable.set(None)
        except ValueError:  # this context is a copy of the block's, from within or from later: nobody joins here
            ambient.set_rollback_only()
            return ambient
        except RuntimeError:  # as above, with a newer token
            before = None if token is None else token.old_value
            ambient_variable.set(None if before is Token.MISSING else before)
        if ambient.suspended is not None:
            ambient_variable.set(ambient.suspended)
        around = ambient_variable.get()
        tell_jobs(around, ambient)
        if entering is not None:
            dropped.await_rollback(ambient)
        if around is None or around is ambient:
            return None
        ambient = around
    return ambient


def left_behind(transaction: Transaction) -> None:
    """The last reference to the transaction's block is gone, and nobody has left that. May be called in a finaliser."""
    transaction.extent, transaction.block = GONE, None
    if transaction.status in OPEN:
        dropped.roll_back_abandoned(transaction, _LEFT)
    if transaction.token is not None and ambient_variable.get() is transaction:
        with suppress(ValueError, RuntimeError):  # `live` finds it
            ambient_variable.reset(transaction.token)


_LEFT = "left by its block without its end, as by an interrupt just there"


def make_ambient(transaction: Transaction | None) -> Token[Transaction | None]:
    """Make it the ambient transaction of this thread or task; the token is for `restore_ambient`."""
    token = ambient_variable.set(transaction)
    try:
        if spark.is_loaded():
            publish(transaction)
    except BaseException:  # an interrupt: the caller gets no token, so nobody would end what is ambient
        ambient_variable.reset(token)
        raise
    return token


def restore_ambient(token: Token[Transaction | None]) -> None:
    """Make the ambient transaction what it was before `make_ambient` returned this token."""
    left = ambient_variable.get()
    ambient_variable.reset(token)
    tell_jobs(ambient_variable.get(), left)


def tell_jobs(ambient: Transaction | None, left: Transaction | None) -> None:
    """Tell Spark's jobs of the ambient transaction, which another was before."""
    if spark.is_loaded():
        publish(ambient, left)


def forked_within() -> str | None:
    """The gtrid of the transaction within which this process was forked: it is the parent's alone. None: in none."""
    return _forked_within


_forked_within: str | None = None


def _after_fork_in_child() -> None:
    global _forked_within
    parents = ambient_variable.get()
    if parents is not None and parents.status in OPEN:
        _forked_within = parents.gtrid
    ambient_variable.set(None)


os.register_at_fork(after_in_child=_after_fork_in_child)
