"""transactional(): a function whose calls are transactions."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from txpool.errors import ConfigurationError, ProgrammingError, require_done
from txpool.sql.characteristics import Characteristics, IsolationLevel
from txpool.tm.ambient import current, make_ambient, restore_ambient
from txpool.tm.commit.annotations import checked_note
from txpool.tm.demarcation.block import idempotent_transaction, transaction
from txpool.tm.demarcation.functions import (
    decorate_methods,
    decorated,
    is_coroutine_function,
    origin_of,
    require_function,
)
from txpool.tm.demarcation.propagation import Propagation, check_arguments, check_id, require_recordable
from txpool.tm.demarcation.retry import RetryPolicy
from txpool.tm.rules.required import outside

if TYPE_CHECKING:
    from txpool.idempotency.once import IdempotentTransaction, RecordIn
    from txpool.tm.completion.dropped import Origin

P = ParamSpec("P")
T = TypeVar("T")
Exceptions = tuple[type[BaseException], ...]


@overload
def transactional(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def transactional(
    propagation: Propagation = "required",
    *,
    timeout: float | None = None,
    isolation: IsolationLevel | None = None,
    read_only: bool | None = None,
    rollback_on: Exceptions = (),
    dont_rollback_on: Exceptions = (),
    attempts: int = 1,
    note: str = "",
    transaction_id: str | Callable[..., str] | None = None,
    record_in: RecordIn | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def transactional(
    propagation: Any = "required",
    *,
    timeout: float | None = None,
    isolation: IsolationLevel | None = None,
    read_only: bool | None = None,
    rollback_on: Exceptions = (),
    dont_rollback_on: Exceptions = (),
    attempts: int = 1,
    note: str = "",
    transaction_id: str | Callable[..., str] | None = None,
    record_in: RecordIn | None = None,
) -> Any:
    """Make each call of a function a transaction, or a part of the ambient one, as JTA's @Transactional does.

    An exception rolls back, unless it is one of `dont_rollback_on` and none of `rollback_on`; it is raised in either
    case. A coroutine function's transaction ends when it has been awaited; a generator is refused, since its body runs
    after the call. Of a class, each public method that it defines itself, and that is not transactional already,
    becomes so: no property, and nothing inherited. Propagation: `required` joins or begins, `requires_new` begins one
    of its own, `mandatory` must be called within a transaction and `never` outside, `supports` joins if there is one,
    `not_supported` runs outside. `timeout`, `isolation` and `read_only` are those of transaction(). Errors: as
    transaction(), and ProgrammingError if the propagation does not fit.

    With `attempts` above 1 the function is called again, after a short pause, if it began the transaction itself and
    that was rolled back for a conflict with others: a serialization failure, a deadlock, no free prepared slot,
    or SQLite's file being busy. Never if the outcome is in doubt or heuristic, a database has not answered yet, or
    the timeout has expired. Only what it does in the transaction is undone before.

    With a `transaction_id`, the call for each id happens once, as with transaction(). It is a text, or a function that
    makes one of the call's arguments (`transaction_id=lambda number: f"invoice-{number}", record_in="orders"`). A call
    for an id that is done already raises AlreadyDone; if a function of another name has done it, ProgrammingError.
    """
    if callable(propagation) or isinstance(propagation, classmethod | property):
        return transactional()(propagation)  # without parentheses, a class too
    characteristics = Characteristics.of(isolation, read_only)
    check_arguments(propagation, attempts, characteristics)
    note = checked_note(note)
    if transaction_id is not None or record_in is not None:
        require_recordable(characteristics)
        check_id(propagation, transaction_id, record_in)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if isinstance(function, type):
            decorate_methods(function, decorate)
            return cast(Callable[P, T], function)
        name = require_function(function)
        around = functools.partial(
            _around,
            name,
            propagation,
            timeout,
            origin=origin_of(function),
            characteristics=characteristics,
            rollback_on=rollback_on,
            dont_rollback_on=dont_rollback_on,
            note=note,
        )

        def idempotent(args: Any, kwargs: Any) -> IdempotentTransaction | None:
            if transaction_id is None:
                return None
            call_id = transaction_id(*args, **kwargs) if callable(transaction_id) else transaction_id
            return idempotent_transaction(call_id, record_in, function)

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
                policy, record = RetryPolicy(name, attempts), idempotent(args, kwargs)
                while True:
                    try:
                        async with _in_task(around(policy, record)):
                            return await cast(Any, function)(*args, **kwargs)
                    except Exception as error:
                        pause = policy.pause(error)
                        if pause is None:
                            raise
                    import asyncio  # whoever gets here has it already

                    await asyncio.sleep(pause)

        else:

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                policy, record = RetryPolicy(name, attempts), idempotent(args, kwargs)
                while True:
                    try:
                        with around(policy, record):
                            result = function(*args, **kwargs)
                            require_done("a @transactional function", result, iterated=True)
                            return result
                    except Exception as error:
                        pause = policy.pause(error)
                        if pause is None:
                            raise
                    time.sleep(pause)

        decorated.add(call)
        return cast(Callable[P, T], call)

    return decorate


class _Blocking:
    """Around a coroutine's awaited call, if no loop can wait for the databases: begin and end hold it."""

    def __init__(self, block: AbstractContextManager[None]) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        self._block.__enter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        return self._block.__exit__(kind, error, trace)


def _in_task(block: AbstractContextManager[None]) -> AbstractAsyncContextManager[None]:
    """The block for a coroutine: its begin and end are awaited, if greenlet is installed and asyncio runs."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return _Blocking(block)
    try:
        entered = resolve_name("txpool.aio.block:Entered")
    except ConfigurationError:
        return _Blocking(block)
    around: AbstractAsyncContextManager[None] = entered(block, strict=False)
    return around


@contextmanager
def _around(
    name: str,
    propagation: Propagation,
    timeout: float | None,
    policy: RetryPolicy,
    idempotent: IdempotentTransaction | None = None,
    *,
    origin: Origin | None,
    characteristics: Characteristics,
    rollback_on: Exceptions,
    dont_rollback_on: Exceptions,
    note: str,
) -> Iterator[None]:
    """Around each attempt of a call of a decorated function."""
    ambient = current()
    inside = ambient is not None and not ambient.ended
    if propagation == "mandatory" and not inside:
        raise ProgrammingError(
            f"{name}() must be called within a transaction (propagation mandatory), and there is none here: call it in "
            "a block of `txpool.transaction()`. Nothing was done"
        )
    if propagation == "never" and ambient is not None and inside:
        raise ProgrammingError(
            f"{name}() must not be called within a transaction (propagation never), and {ambient.gtrid} is active "
            "here: call it outside, or suspend() that first. Nothing was done"
        )
    if propagation == "supports":
        yield
        return
    if propagation == "never":
        with outside():
            yield
        return
    requires_new = propagation == "requires_new"
    block = transaction.of_call(timeout, note, characteristics, idempotent, requires_new=requires_new)
    token = make_ambient(None) if requires_new or propagation == "not_supported" else None
    try:
        if propagation == "not_supported":
            with outside():
                yield
            return
        kept_error: BaseException | None = None
        with block as entered:
            if not block.joined:
                entered.origin = origin
                if requires_new:
                    entered.suspended = ambient
            try:
                yield
            except dont_rollback_on as error:
                if isinstance(error, rollback_on):
                    raise
                kept_error = error
        if kept_error is not None:
            raise kept_error
    finally:
        policy.begun = block.begun
        if token is not None:
            with contextlib.suppress(ValueError):  # an abandoned coroutine may be closed in another context
                restore_ambient(token)
