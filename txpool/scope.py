"""transaction() and transactional(): a block or a function that is a transaction; values that live as long as one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from txpool.errors import ProgrammingError, TransactionTimeout
from txpool.manager import current, get_manager, make_ambient, renew_ambient, restore_ambient
from txpool.transaction import Status, Transaction

P = ParamSpec("P")
T = TypeVar("T")
Exceptions = tuple[type[BaseException], ...]
Propagation = Literal["required", "requires_new", "mandatory", "supports", "not_supported", "never"]


class transaction:  # noqa: N801 - it reads as a word of the language: `with transaction():`
    """A block that commits at its end and rolls back on an exception; within another one it joins that.

    `timeout` in seconds counts for the block that begins the transaction. The exception of a nested block marks the
    whole rollback-only. Errors at the block's end: TransactionRolledBack, TransactionTimeout, TransactionInDoubt,
    HeuristicError.
    """

    __slots__ = ("_joined", "_timeout", "_token", "_transaction")

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout

    def __enter__(self) -> Transaction:
        ambient = current()
        self._joined = ambient is not None and not ambient.ended
        if ambient is not None and self._joined:
            if not ambient.active:
                ambient.require_active()
            self._transaction = ambient
        else:
            self._transaction = get_manager().new_transaction(self._timeout)
            self._transaction.scoped = True
            self._token: Token[Transaction | None] = make_ambient(self._transaction)
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._joined:
            if error is not None:
                self._transaction.set_rollback_only(error)
            return
        try:
            self._token = renew_ambient(self._transaction, self._token)
        except ValueError as elsewhere:
            self._transaction.rollback(leaving=True)
            raise ProgrammingError(
                f"the block of {self._transaction.gtrid} is left in another thread or context than it was entered in "
                "(by a generator that has gone on elsewhere?): all of it was rolled back. Enter and leave it in one"
            ) from error or elsewhere
        # Ended while it is still ambient: before_completion callbacks work in it.
        try:
            self._end(error)
        finally:
            restore_ambient(self._token)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._transaction.commit(leaving=True)
            return
        self._transaction.rollback(leaving=True)
        timeout = self._transaction.doom
        if isinstance(timeout, TransactionTimeout) and isinstance(error, Exception) and error is not timeout:
            raise timeout from error  # the error is what being cancelled looked like from inside


def transactional(
    propagation: Propagation = "required",
    *,
    timeout: float | None = None,
    rollback_on: Exceptions = (),
    dont_rollback_on: Exceptions = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make each call of a function a transaction, or a part of the ambient one, as JTA's @Transactional does.

    An exception rolls back, unless it is one of `dont_rollback_on` and none of `rollback_on`; it is raised in either
    case. A coroutine function's transaction ends when it has been awaited; a generator is refused, since its body runs
    after the call. Propagation: `required` joins or begins, `requires_new` begins one of its own, `mandatory` and
    `never` insist, `supports` takes what there is, `not_supported` runs outside. Errors: as transaction(), and
    ProgrammingError where the propagation does not fit.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__qualname__
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ProgrammingError(
                f"{name}() is a generator: its body runs when it is iterated, and a call would commit before that. "
                "Decorate what iterates it"
            )
        around = functools.partial(_around, name, propagation, timeout, rollback_on, dont_rollback_on)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
                with around():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                with around():
                    return function(*args, **kwargs)

        return cast(Callable[P, T], call)

    return decorate


@contextmanager
def _around(
    name: str,
    propagation: Propagation,
    timeout: float | None,
    rollback_on: Exceptions,
    dont_rollback_on: Exceptions,
) -> Iterator[None]:
    """What is around each call of a decorated function."""
    ambient = current()
    inside = ambient is not None and not ambient.ended
    if propagation == "mandatory" and not inside:
        raise ProgrammingError(f"{name}() must be called within a transaction")
    if propagation == "never" and inside:
        raise ProgrammingError(f"{name}() must not be called within a transaction")
    if propagation in ("never", "supports"):
        yield
        return
    token = make_ambient(None) if propagation in ("requires_new", "not_supported") else None
    try:
        if propagation == "not_supported":
            yield
            return
        kept: BaseException | None = None
        with transaction(timeout):
            try:
                yield
            except dont_rollback_on as error:
                if isinstance(error, rollback_on):
                    raise
                kept = error
        if kept is not None:
            raise kept
    finally:
        if token is not None:
            restore_ambient(token)


class TransactionScoped(Generic[T]):
    """A value of which each transaction has its own: made at first use, closed and gone with the transaction's end."""

    def __init__(self, factory: Callable[[], T], close: Callable[[T], object] | None = None) -> None:
        self._factory = factory
        self._close = close

    def __call__(self) -> T:
        """The ambient transaction's value. Errors: ProgrammingError without an active transaction."""
        ambient = current()
        if ambient is None:
            raise ProgrammingError("a transaction-scoped value exists only within a transaction, and there is none")
        if self not in ambient.values:
            ambient.require_active()
            value = ambient.values[self] = self._factory()
            ambient.after_completion(lambda _: self._end(ambient, value))
        made: T = ambient.values[self]
        return made

    def _end(self, ended: Transaction, value: T) -> None:
        del ended.values[self]
        if self._close is not None:
            self._close(value)


def observe(observer: Callable[[Transaction], object], phase: Literal["begin", "before", "success", "failure"]) -> None:
    """Call an observer with every transaction of this process from now on, at this phase of its life.

    `before` runs before completion, and its exception forces rollback; `success` and `failure` run after it (`failure`
    whenever the transaction did not commit everywhere), and their errors are logged.
    """

    def attach(begun: Transaction) -> None:
        if phase == "begin":
            observer(begun)
        elif phase == "before":
            begun.before_completion(lambda: observer(begun))
        else:
            begun.after_completion(
                lambda status: observer(begun) if (status is Status.COMMITTED) == (phase == "success") else None
            )

    get_manager().on_begin.append(attach)
