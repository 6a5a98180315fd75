"""The ambient transaction of a thread or task: the one that its statements are a part of.

It lives in a ContextVar. An asyncio task inherits the one that its creator had; a new thread and a forked child start
with none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from txpool.jobs.properties import publish

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

#: For code that must set it without the job properties of Spark (`make_ambient` sets those as well).
ambient_variable: ContextVar[Transaction | None] = ContextVar("txpool.transaction", default=None)

#: Same as `current`, without the price of a Python call. A function that a user ships to Spark can refer to `current`,
#: and could not refer to this.
ambient: Callable[[], Transaction | None] = ambient_variable.get


def current() -> Transaction | None:
    """The ambient transaction of this thread or task, or None."""
    return ambient_variable.get()


def make_ambient(transaction: Transaction | None) -> Token[Transaction | None]:
    """Make it the ambient transaction of this thread or task; the token is for `restore_ambient`."""
    token = ambient_variable.set(transaction)
    if "pyspark" in sys.modules:
        try:
            publish(transaction)
        except BaseException:  # an interrupt: the caller gets no token, so nobody would end what is ambient
            ambient_variable.reset(token)
            raise
    return token


def restore_ambient(token: Token[Transaction | None]) -> None:
    """Make the ambient transaction what it was before `make_ambient` returned this token."""
    if "pyspark" in sys.modules:
        left = ambient_variable.get()
        ambient_variable.reset(token)
        publish(ambient_variable.get(), left)
    else:
        ambient_variable.reset(token)


def leave_ambient() -> None:
    """The ambient transaction has ended: leave none."""
    left = ambient_variable.get()
    ambient_variable.set(None)
    if "pyspark" in sys.modules:
        publish(None, left)


def _after_fork_in_child() -> None:
    ambient_variable.set(None)


os.register_at_fork(after_in_child=_after_fork_in_child)
