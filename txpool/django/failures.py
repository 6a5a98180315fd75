"""The errors of a commit that has failed: txpool's, and Django's too if nothing of the transaction stays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.db import utils

from txpool import errors
from txpool.errors import TransactionRolledBack, chain

_NAMES = ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError", "InternalError", "InterfaceError")


def as_djangos(error: TransactionRolledBack) -> TransactionRolledBack:
    """Make it an instance of Django's class, too, in place: of the one for what the database has said.

    Code that catches `django.db.IntegrityError` around `atomic` finds a constraint that is checked by the commit. An
    error of a transaction in doubt stays txpool's alone: who tries again after a DatabaseError must not do so then.
    """
    name = "OperationalError"
    for cause in chain(error, contexts=False):
        found = next((each for each in _NAMES if isinstance(cause, getattr(errors, each))), None)
        if found is not None and cause is not error:
            name = found
            break
    error.__class__ = _both(type(error), name)
    return error


@lru_cache(maxsize=64)
def _both(ours: type[TransactionRolledBack], name: str) -> type[TransactionRolledBack]:
    def reduce(error: TransactionRolledBack) -> tuple[Any, ...]:
        return _rebuilt, (ours, name, error.args[0], error.gtrid, error.datasource)

    namespace = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, getattr(utils, name)), {**namespace, "__reduce__": reduce})


def _rebuilt(ours: type[TransactionRolledBack], name: str, message: str, gtrid: str, datasource: str | None) -> Any:
    return _both(ours, name)(message, gtrid=gtrid, datasource=datasource)
