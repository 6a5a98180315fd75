"""transaction.required of a datasource: whether a statement outside any transaction is allowed, warned of, or refused.

The check finds work in threads that are not in the transaction, and functions that lack their decorator. Work that is
explicitly outside is allowed: in a function whose propagation is `not_supported` or `never`, or while a transaction is
suspended; so is txpool's own work. In a Spark task whose job belongs to a transaction of the driver, all other work
outside is refused, whatever the key says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING
from weakref import ref

from txpool.errors import OutsideTransactionWarning, ProgrammingError
from txpool.jobs.bypass import in_task, refuse_in_task

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

#: The modules whose frames are on the stack between a statement and the code that executes it. A datasource adds
#: those of its handle.
handle_modules = {
    __name__,
    "contextlib",
    "txpool.aio.connection",
    "txpool.aio.cursor",
    "txpool.datasource.datasource",
    "txpool.datasource.lookup",
    "txpool.dbapi.connection",
    "txpool.dbapi.cursor",
    "txpool.dbapi.handle",
    "txpool.dbapi.two_phase",
}
#: Packages that execute statements for other code: a warning names the line of that code.
_LIBRARIES = frozenset({"pandas", "sqlalchemy"})

#: True within a function that is explicitly outside.
_declared_outside: ContextVar[bool] = ContextVar("txpool.outside", default=False)
#: The transaction that was suspended here, and not resumed since.
_suspended: ContextVar[ref[Transaction] | None] = ContextVar("txpool.suspended", default=None)


@contextmanager
def outside() -> Iterator[None]:
    """Within the block, work outside any transaction is allowed."""
    token = _declared_outside.set(True)
    try:
        yield
    finally:
        with suppress(ValueError):  # an abandoned coroutine may be closed in another context
            _declared_outside.reset(token)


def note_suspended(transaction: Transaction | None) -> None:
    """Remember the transaction that was suspended in this context; None if one was resumed."""
    _suspended.set(None if transaction is None else ref(transaction))


def refuse_beginning_in_task() -> None:
    """ProgrammingError if a transaction would begin in a Spark task whose job belongs to one of the driver.

    One whose propagation is `requires_new` may begin there: it is not checked by this.
    """
    if in_task() and not _declared_outside.get() and not _is_suspended():
        refuse_in_task("a transaction cannot begin here")


class Required:
    """The transaction.required of one datasource."""

    __slots__ = ("_demands", "_name")

    def __init__(self, datasource: str, demands: str) -> None:
        """`demands` is the value of transaction.required; with `off`, only work in Spark tasks is checked."""
        self._name = datasource
        self._demands = demands

    def check_connecting(self) -> None:
        """Before a plain connection is taken. ProgrammingError in a task of a Spark driver's transaction."""
        if in_task() and self._users_frame() is not None:
            refuse_in_task(f"datasource {self._name}")

    def check(self) -> None:
        """Before a statement on a plain connection. ProgrammingError, or a warning at the caller's line."""
        in_spark_task = in_task()
        if self._demands == "off" and not in_spark_task:
            return
        frame = self._users_frame()
        if frame is None:
            return
        if in_spark_task:
            refuse_in_task(f"datasource {self._name}")
        if self._demands == "off":
            return
        if self._demands == "strict":
            raise ProgrammingError(
                f"datasource {self._name}: a statement outside any transaction, and transaction.required = strict "
                f"refuses that. Nothing was done. {_WHAT_TO_DO}"
            )
        while frame.f_back is not None and (_package(frame) in _LIBRARIES or _is_handle_code(frame)):
            frame = frame.f_back
        names = frame.f_globals
        warnings.warn_explicit(
            f"datasource {self._name}: a statement outside any transaction, which no transaction's end will undo or "
            f"keep (transaction.required = warn). {_WHAT_TO_DO}",
            OutsideTransactionWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            names.get("__name__", "<unknown>"),
            names.setdefault("__warningregistry__", {}),
        )

    def _users_frame(self) -> FrameType | None:
        """The frame that executes a statement; None if it may be outside, or is txpool's own."""
        if _declared_outside.get() or _is_suspended():
            return None
        frame = _caller(_getframe(2))
        return None if _package(frame) == "txpool" and not _is_handle_code(frame) else frame


_WHAT_TO_DO = (
    "Work within a block of `txpool.transaction()` or a function that is @txpool.transactional. A new thread is in no "
    "transaction: resume() the transaction there, or use its connection. Put what must be outside into a function with "
    'the propagation "not_supported"'
)


def _is_suspended() -> bool:
    reference = _suspended.get()
    transaction = None if reference is None else reference()
    return transaction is not None and not transaction.ended


def _caller(frame: FrameType) -> FrameType:
    """The frame that executes the statement; a handle's own if the thread has no other."""
    while frame.f_back is not None and _is_handle_code(frame):
        frame = frame.f_back
    return frame


def _is_handle_code(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in handle_modules


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
