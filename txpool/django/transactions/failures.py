"""Errors of txpool's own that are instances of Django's classes, too, as those of the drivers are turned into such."""

from __future__ import annotations

from functools import lru_cache
from types import TracebackType
from typing import Any

from django.db import utils

from txpool import errors
from txpool.errors import Error, HeuristicError, TransactionInDoubt, TransactionRolledBack, chain

_NAMES = ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError", "InternalError", "InterfaceError")


class ErrorWrapper(utils.DatabaseErrorWrapper):
    """Django's, which turns the driver's errors into its own; txpool's become instances of both."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, Error):
            as_djangos(error)


def as_djangos(error: Error) -> Error:
    """Make it an instance of Django's class, too, in place: of the one for what the database, or txpool, has said.

    Code that catches `django.db.IntegrityError` around `atomic` finds a constraint that is checked by the commit. An
    error of a transaction in doubt stays txpool's alone: who tries again after a DatabaseError must not do so then.
    """
    if isinstance(error, utils.Error | TransactionInDoubt | HeuristicError):
        return error
    name = "OperationalError"
    for cause in chain(error, contexts=False):
        found = next((each for each in _NAMES if isinstance(cause, getattr(errors, each))), None)
        if found is not None:
            name = found
            break
    ours: Any = type(error)
    error.__class__ = _both(ours, name)  # as `txpool.errors.translate`
    return error


@lru_cache(maxsize=64)
def _both(ours: Any, name: str) -> Any:
    def reduce(error: Any) -> tuple[Any, ...]:
        more = {"gtrid": error.gtrid, "datasource": error.datasource} if issubclass(ours, TransactionRolledBack) else {}
        return _rebuilt, (ours, name, error.args, more)

    namespace = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, getattr(utils, name)), {**namespace, "__reduce__": reduce})


def _rebuilt(ours: Any, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    return _both(ours, name)(*args, **more)
