"""transaction.required of a datasource: what becomes of a statement outside any transaction.

It finds threads that left the transaction, and forgotten decorators. What is explicitly outside is allowed: a function
whose propagation is `not_supported` or `never`, and work while a transaction is suspended; so is txpool's own.
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

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.transaction import Transaction

#: The modules through which a statement comes, whoever executes it.
_HANDLES = frozenset(
    {
        __name__,
        "contextlib",
        "txpool.connection",
        "txpool.cursor",
        "txpool.handles.psycopg",
        "txpool.handles.sqlite",
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


def suspended(transaction: Transaction | None) -> None:
    """This one was suspended here; None where one was resumed."""
    _suspended.set(None if transaction is None else ref(transaction))


def require_transaction(datasource: DataSource | None) -> None:
    """Before a statement on a plain connection: what its datasource demands."""
    if datasource is not None and datasource.required is not None:
        datasource.required.check()


class Required:
    """What one datasource demands: that statements are part of a transaction."""

    __slots__ = ("_name", "_strict")

    def __init__(self, datasource: str, *, strict: bool) -> None:
        self._name = datasource
        self._strict = strict

    def check(self) -> None:
        """Before a statement on a plain connection. ProgrammingError, or a warning at the caller's line."""
        if _declared.get() or _is_suspended():
            return
        frame = _caller(_getframe(1))
        if _package(frame) == "txpool" and not _is_handles(frame):
            return
        if self._strict:
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
