"""The JVM in a forked child: it has no threads there, so a call, or just the release of an object, may wait for ever.

From the fork on JPype finds no JVM in the child. Then Java objects that the child has inherited are let go of without
a call into Java, also when the child's interpreter ends.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any, Final

from txpool.errors import InterfaceError

_NO_JVM_IN_A_CHILD: Final = (
    "a forked process cannot use the JVM of its parent: JDBC datasources are to be used first in the process that "
    "works with them. With gunicorn leave out --preload, or make the first connection in the hook post_fork, not while "
    "the application is imported; with multiprocessing use the start method spawn or forkserver; else fork before the "
    "first connection"
)
#: What keeps the library in memory, by its path.
_held: dict[str, ctypes.CDLL] = {}


def forget_after_fork(libjvm: str) -> None:
    """From now on each forked child forgets the JVM that runs, whose library is at this path."""
    # JPype forgets a JVM only along with its library, and the child's memory must not lose code that is in use.
    _held[libjvm] = ctypes.CDLL(libjvm)
    os.register_at_fork(after_in_child=_forget)


def after_fork_error() -> InterfaceError:
    """The error of a use in a forked child."""
    return InterfaceError(_NO_JVM_IN_A_CHILD)


def _forget() -> None:
    import _jpype

    native: Any = _jpype
    with suppress(RuntimeError):  # it was forgotten in a child whose child this is
        # Public JPype has shutdownJVM(), which calls Java first.
        native.shutdown(False, True)
