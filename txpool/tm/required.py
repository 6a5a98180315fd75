"""transaction.required of a datasource: what becomes of a statement outside any transaction.

It finds threads that left the transaction, and forgotten decorators. What is explicitly outside is allowed: a function
whose propagation is `not_supported` or `never`, and work while a transaction is suspended; so is txpool's own. All else
is refused, whatever the key says, in a Spark task that would go past its driver's transaction.
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

#: The modules through which a statement comes, whoever executes it.
_HANDLES = frozenset(
    {
        __name__,
        "contextlib",
        "txpool.datasource",
        "txpool.dbapi.connection",
        "txpool.dbapi.cursor",
        "txpool.resources.postgresql.handle",
        "txpool.resources.sqlite.handle",
    }
)
#: Packages that execute for somebody, whose line is of interest.
_LIBRARIES = frozenset({"pandas", "sqlalchemy"})

#: Within a function that is explicitly outside.
_declared: ContextVar[bool] = ContextVar("txpool.outside", default=False)
#: The transaction that was suspended here, and not resumed since.
_suspended: ContextVar[ref[Transaction] | None] = ContextVar("txpool.suspended", default=None)


@contextmanager
def outside() -> Iterator[None]:
    """Within the block, work outside any transaction is meant."""
    token = _declared.set(True)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that was given up is closed anywhere
            _declared.reset(token)


def note_suspended(transaction: Transaction | None) -> None:
    """This one was suspended here; None where one was resumed."""
    _suspended.set(None if transaction is None else ref(transaction))


def refuse_beginning_in_task() -> None:
    """Before a transaction begins that nobody has set apart: ProgrammingError where a Spark task's job is in one."""
    if in_task() and not _declared.get() and not _is_suspended():
        refuse_in_task("a transaction cannot begin here")


class Required:
    """What one datasource demands: that statements are part of a transaction."""

    __slots__ = ("_demands", "_name")

    def __init__(self, datasource: str, demands: str) -> None:
        """`demands` is transaction.required; where it is off, a Spark task's work shall not go past its driver's."""
        self._name = datasource
        self._demands = demands

    def check_connecting(self) -> None:
        """Before a plain connection is taken. ProgrammingError where it goes past a Spark driver's transaction."""
        if in_task() and self._users_frame() is not None:
            refuse_in_task(f"datasource {self._name}")

    def check(self) -> None:
        """Before a statement on a plain connection. ProgrammingError, or a warning at the caller's line."""
        tasks = in_task()
        if self._demands == "off" and not tasks:
            return
        frame = self._users_frame()
        if frame is None:
            return
        if tasks:
            refuse_in_task(f"datasource {self._name}")
        if self._demands == "off":
            return
        if self._demands == "strict":
            raise ProgrammingError(
                f"datasource {self._name}: a statement outside any transaction, and transaction.required = strict "
                f"refuses that. Nothing was done. {_HOW}"
            )
        while frame.f_back is not None and _package(frame) in _LIBRARIES:
            frame = frame.f_back
        names = frame.f_globals
        warnings.warn_explicit(
            f"datasource {self._name}: a statement outside any transaction, which no transaction's end will undo or "
            f"keep (transaction.required = warn). {_HOW}",
            OutsideTransactionWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            names.get("__name__", "<unknown>"),
            names.setdefault("__warningregistry__", {}),
        )

    def _users_frame(self) -> FrameType | None:
        """Who does it; None where it is meant to be outside, or is txpool's own."""
        if _declared.get() or _is_suspended():
            return None
        frame = _caller(_getframe(2))
        return None if _package(frame) == "txpool" and not _is_handles(frame) else frame


_HOW = (
    "Work within `with txpool.transaction()` or a function that is @txpool.transactional. A new thread is in none: "
    "resume() the transaction there, or use its connection. What must be outside belongs into a function with the "
    'propagation "not_supported"'
)


def _is_suspended() -> bool:
    known = _suspended.get()
    transaction = None if known is None else known()
    return transaction is not None and not transaction.ended


def _caller(frame: FrameType) -> FrameType:
    """Who executes the statement; a handle's own where a thread does nothing else."""
    while frame.f_back is not None and _is_handles(frame):
        frame = frame.f_back
    return frame


def _is_handles(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _HANDLES


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
