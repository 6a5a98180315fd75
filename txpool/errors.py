"""Every exception of txpool: PEP 249's tree, and the outcomes of a transaction below it.

::

    Exception
    ├── Warning                            (PEP 249)
    ├── UserWarning
    │   ├── OutsideTransactionWarning      a statement outside any transaction, if transaction.required = warn
    │   └── EmptyTransactionWarning        a block has committed, and nothing took part in it
    └── Error                              (PEP 249)
        ├── InterfaceError
        │   └── ConfigurationError         a file, key or value is wrong; nothing was done
        ├── DatabaseError
        │   ├── DataError
        │   ├── OperationalError
        │   │   ├── PoolTimeout            no connection within the wait; says who holds them
        │   │   ├── PoolClosed
        │   │   └── LogError               the decision log cannot be used
        │   │       └── LogUnknown         a write of it may or may not have landed
        │   ├── IntegrityError
        │   ├── InternalError
        │   ├── ProgrammingError
        │   └── NotSupportedError
        ├── AlreadyDone                    a transaction of the same transaction_id has committed; has .done_at …
        └── TransactionError               has .gtrid and .datasource
            ├── TransactionRolledBack      nothing that was done within it stays
            │   └── TransactionTimeout     rolled back because its time was up
            ├── TransactionInDoubt         neither success nor failure; the message says how to find out
            └── HeuristicError             a resource manager ended a branch on its own
                ├── HeuristicRollback
                ├── HeuristicCommit
                ├── HeuristicMixed
                └── HeuristicHazard        a branch is gone and nobody can say how it ended

An error raised by a driver inside a txpool connection is an instance of the driver's own class and of the
class here that PEP 249 gives it, see `translated`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any


class Warning(Exception):  # noqa: A001 - the name is PEP 249's
    """PEP 249: an important warning, like data truncations while inserting."""


class OutsideTransactionWarning(UserWarning):
    """A statement outside any transaction, on a datasource whose transaction.required is warn."""


class EmptyTransactionWarning(UserWarning):
    """A block has committed, and nothing took part in it: what was done there by other means stands outside."""


class Error(Exception):
    """PEP 249: the base of every error."""


class InterfaceError(Error):
    """PEP 249: an error of the interface rather than of the database."""


class ConfigurationError(InterfaceError):
    """A file, a key or a value is wrong: the message names it and what would be right. Nothing was done."""


class DatabaseError(Error):
    """PEP 249: an error of the database."""


class DataError(DatabaseError):
    """PEP 249: a problem with the processed data."""


class OperationalError(DatabaseError):
    """PEP 249: an error of the database's operation, not under the programmer's control."""


class PoolTimeout(OperationalError):
    """No connection came free within the wait; the message says who holds them."""


class PoolClosed(OperationalError):
    """The pool, or the datasource, has been closed."""


class LogError(OperationalError):
    """The decision log cannot be used: missing, damaged, another node's, or poisoned."""


class LogUnknown(LogError):
    """A write of the decision log may or may not have landed: an abort record must resolve it, never a guess."""


class IntegrityError(DatabaseError):
    """PEP 249: the relational integrity is affected."""


class InternalError(DatabaseError):
    """PEP 249: an internal error of the database."""


class ProgrammingError(DatabaseError):
    """PEP 249: a mistake of the program, such as commit() on a connection that a transaction owns."""


class NotSupportedError(DatabaseError):
    """PEP 249: the database does not support what was asked."""


class AlreadyDone(Error):
    """The work of a transaction_id was done before, and nothing was done now.

    `datasource` has the record of it, `gtrid` is the transaction that has done it, and `done_at` is when that began
    there, by the database's clock (UTC; None if the record does not say).
    """

    def __init__(
        self, message: str, *, transaction_id: str, datasource: str, gtrid: str, done_at: datetime | None
    ) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
        self.datasource = datasource
        self.gtrid = gtrid
        self.done_at = done_at

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_already_done, (self.args[0], self.transaction_id, self.datasource, self.gtrid, self.done_at)


def _rebuild_already_done(
    message: str, transaction_id: str, datasource: str, gtrid: str, done_at: datetime | None
) -> AlreadyDone:
    return AlreadyDone(message, transaction_id=transaction_id, datasource=datasource, gtrid=gtrid, done_at=done_at)


class TransactionError(Error):
    """The base of the errors of a transaction's end: its `gtrid`, and the `datasource` that the error is about."""

    def __init__(self, message: str, *, gtrid: str | None = None, datasource: str | None = None) -> None:
        super().__init__(message)
        self.gtrid = gtrid
        self.datasource = datasource

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self.gtrid, self.datasource)


def _rebuild(cls: type[TransactionError], message: str, gtrid: str | None, datasource: str | None) -> Any:
    return cls(message, gtrid=gtrid, datasource=datasource)


class TransactionRolledBack(TransactionError):
    """Nothing that was done within the transaction stays, or will appear. Work outside of it is not undone."""


class TransactionTimeout(TransactionRolledBack):
    """The transaction was rolled back because its time was up."""


class TransactionInDoubt(TransactionError):
    """Neither success nor failure: the outcome is not known here yet; the message says how it will be found."""


class HeuristicError(TransactionError):
    """A resource manager, or a person, ended a branch otherwise than the transaction was decided."""


class HeuristicRollback(HeuristicError):
    """The transaction was decided to commit, and every branch rolled back."""


class HeuristicCommit(HeuristicError):
    """The transaction was to roll back, and every branch committed."""


class HeuristicMixed(HeuristicError):
    """Some branches committed and others rolled back."""


class HeuristicHazard(HeuristicError):
    """A branch is gone, and nobody can say how it ended."""


# PEP 249's classes in the order in which a driver's class is looked up: the most specific first.
_PEP249: tuple[type[Exception], ...] = (
    IntegrityError,
    DataError,
    ProgrammingError,
    NotSupportedError,
    InternalError,
    OperationalError,
    DatabaseError,
    InterfaceError,
    Error,
    Warning,
)


@lru_cache(maxsize=512)
def _combined_class(driver_class: type[BaseException]) -> type[BaseException] | None:
    """A class that derives from the driver's class and ours; None if the driver's is not one of PEP 249."""
    names = {base.__name__ for base in driver_class.__mro__ if base.__module__ != "builtins"}
    for ours in _PEP249:
        if ours.__name__ in names and ("Error" in names or ours is Warning):
            namespace = {
                "__module__": driver_class.__module__,
                "__qualname__": driver_class.__qualname__,
                "__doc__": driver_class.__doc__,
                "__reduce__": _reduce_translated,
            }
            return type(driver_class.__name__, (driver_class, ours), namespace)
    return None


def _reduce_translated(error: BaseException) -> tuple[Any, ...]:
    driver_class: Any = type(error).__mro__[1]
    own = vars(error)
    _, _, *rest = driver_class.__reduce__(error)
    # What the driver has put in another's place, as psycopg a result's fields, is meant to be pickled.
    state = {
        key: value
        for key, value in (rest[0] if rest else own).items()
        if isinstance(value, str | int | float | dict | None) or value is not own.get(key)
    }
    return _retranslated, (driver_class, error.args, state)


def _retranslated(driver_class: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = driver_class(*args)
    vars(error).update(state)
    return translate(error)


def translate(error: BaseException) -> BaseException:
    """Make a driver's error an instance of our class too, in place; anything else is returned as it is."""
    if isinstance(error, Error | Warning):
        return error
    driver_class: Any = type(error)
    both = _combined_class(driver_class)
    if both is not None:
        error.__class__ = both
    return error


def described(error: BaseException) -> str:
    """An error in another error's text: its type and its message, if it has one. KeyError('k') is "KeyError: 'k'"."""
    try:
        message = str(error).strip()
    except Exception as failure:  # its class makes its text, and this must not take its place
        return f"{type(error).__name__}, whose text has failed by {type(failure).__name__}"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


#: What a function returns whose body has not begun.
_UNDONE = CoroutineType, GeneratorType, AsyncGeneratorType


def require_done(whose: str, result: object, *, iterated: bool = False) -> None:
    """ProgrammingError if a user's function has done nothing yet: whoever took that for its end would lose its work.

    `iterated` says that its caller iterates a generator.
    """
    if result is None or not isinstance(result, _UNDONE) or (iterated and isinstance(result, GeneratorType)):
        return
    kind = "coroutine" if isinstance(result, CoroutineType) else "generator"
    if not isinstance(result, AsyncGeneratorType):
        result.close()
    raise ProgrammingError(
        f"{whose} has returned the {kind} {result.__qualname__}(), whose body nobody would run here, and nothing of "
        "that was done: give a plain function, which has done its work when it returns"
    )


def chain(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """The error and its causes; with `contexts`, also the errors that were being handled at each."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += (each.__cause__, each.__context__) if contexts else (each.__cause__,)


@contextmanager
def translated() -> Iterator[None]:
    """Make each driver's error that leaves the block an instance of the driver's class and of ours."""
    try:
        yield
    except Exception as error:
        translate(error)
        raise
