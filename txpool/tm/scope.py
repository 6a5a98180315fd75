"""transaction() and transactional(): a block or a function that is a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Token
from sys import _getframe, modules
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_args, overload

from txpool.errors import ProgrammingError, TransactionTimeout
from txpool.tm import dropped
from txpool.tm.ambient import current, make_ambient, renew_ambient, restore_ambient
from txpool.tm.annotations import checked_note
from txpool.tm.functions import is_coroutine_function, require_function
from txpool.tm.manager import get_manager
from txpool.tm.required import outside, refuse_beginning_in_task
from txpool.tm.retry import RetryPolicy
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.idempotency import IdempotentTransaction, RecordIn

P = ParamSpec("P")
T = TypeVar("T")
#: The globals of its frames.
_CONTEXTLIB = vars(contextlib)

Exceptions = tuple[type[BaseException], ...]
Propagation = Literal["required", "requires_new", "mandatory", "supports", "not_supported", "never"]
#: Those that may begin a transaction, and those whose function is in one.
_BEGINNING = ("required", "requires_new")
_INSIDE = (*_BEGINNING, "mandatory")


class transaction:  # noqa: N801 - it reads as a word of the language: `with transaction():`
    """A block that commits at its end and rolls back on an exception; within another one it joins that.

    `timeout` in seconds counts for the block that begins the transaction. The exception of a nested block marks the
    whole rollback-only. `note` is one line for people, kept with the decision, so that an operator finds the business
    behind what is in doubt; the first that a transaction is given stays. A generator or a coroutine that is given up
    within the block, or closed, does not wait for the databases: a thread rolls back, and reports it.

    A `transaction_id`, such as "invoice-42", makes the transaction happen once: a row that says so is written within
    it into the datasource `record_in`, a file, a name or a DataSource. Where an earlier run has committed, AlreadyDone
    is raised before the body; one that is at work is awaited for some ten seconds, and one in doubt is settled first,
    where recovery can. Whether it was the same work cannot be told of a block. A nested block's record is a part of the
    whole, which AlreadyDone leaves as it was. Errors, all before the body: AlreadyDone; OperationalError where the
    other run has not ended; ProgrammingError for what is no id; the driver's own where nothing can be recorded.

    Errors at the block's end: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError.
    """

    __slots__ = ("_independent", "_note", "_once", "_span", "_timeout", "_token", "_transaction", "begun", "joined")

    def __init__(
        self,
        timeout: float | None = None,
        *,
        note: str = "",
        transaction_id: str | None = None,
        record_in: RecordIn | None = None,
    ) -> None:
        self._timeout = timeout
        self._note = note if note == "" else checked_note(note)
        self._once = None if transaction_id is None and record_in is None else _once(transaction_id, record_in)
        #: The transaction that this block has begun; None where it has joined one.
        self.begun: Transaction | None = None
        #: In a Spark task it may be none of the driver's transaction.
        self._independent = False

    def __enter__(self) -> Transaction:
        ambient = current()
        self.joined = ambient is not None and not ambient.ended
        if ambient is not None and self.joined:
            if not ambient.active:
                ambient.require_active()
            self._transaction = ambient
            if self._once is not None:
                self._once.claim(ambient)
            if self._note and not ambient.note:
                ambient.note = self._note
        else:
            if "pyspark" in modules and not self._independent:
                refuse_beginning_in_task()
            frame = _getframe(1)
            while frame.f_globals is _CONTEXTLIB and frame.f_back is not None:  # an ExitStack's
                frame = frame.f_back
            origin = frame.f_code, frame.f_lasti
            dropped.require_not_abandoned(ambient)
            self._begin(get_manager().new_transaction(self._timeout))
            self._transaction.origin = origin  # no call any more: an interrupt would leave it ambient
            self.begun = self._transaction
            if self._once is not None:
                try:
                    self._once.claim(self._transaction)
                except BaseException as error:
                    self.__exit__(type(error), error, error.__traceback__)
                    raise
        return self._transaction

    @classmethod
    def entered(cls, begun: Transaction) -> transaction:
        """A block that is entered already, whatever is ambient; who asked for it leaves it step by step."""
        block = cls()
        block.joined = False
        block._begin(begun)
        return block

    def _begin(self, transaction: Transaction) -> None:
        self._transaction = transaction
        transaction.scoped = True
        if self._note:
            transaction.note = self._note
        if transaction.trace is not None:
            self._span = transaction.trace.enter()
        self._token: Token[Transaction | None] = make_ambient(transaction)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ends_here(error):
            return
        # Ended while it is still ambient: before_completion callbacks work in it.
        try:
            self._end(error)
        finally:
            self._restore()

    def _ends_here(self, error: BaseException | None) -> bool:
        """Whether this block ends the transaction, now and here; where another does, the error is noted."""
        if self.joined:
            if error is not None:
                self._transaction.set_rollback_only(error)
            return False
        given_up = isinstance(error, GeneratorExit)  # perhaps by a finaliser, which does no I/O, and takes no lock
        try:
            self._token = renew_ambient(self._transaction, self._token)
        except ValueError as elsewhere:
            if given_up:
                dropped.roll_back_abandoned(self._transaction)
                return False
            self._transaction.end_rollback()
            raise ProgrammingError(
                f"the block of {self._transaction.gtrid} is left in another thread or context than it was entered in "
                "(by a generator that has gone on elsewhere, as FastAPI's synchronous dependencies do?): what was done "
                "within it was rolled back. Of what other code did meanwhile this says nothing: that may be outside. "
                "Enter and leave it in one"
            ) from error or elsewhere
        if given_up:
            try:
                dropped.roll_back_abandoned(self._transaction)
            finally:
                self._restore()
        return not given_up

    def _restore(self) -> None:
        restore_ambient(self._token)
        if self._transaction.trace is not None:
            self._transaction.trace.leave(self._span)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._transaction.end_commit()
            return
        if self._transaction.trace is not None:
            self._transaction.trace.failed(error)
        self._transaction.end_rollback()
        timeout = self._transaction.rollback_cause
        if isinstance(timeout, TransactionTimeout) and isinstance(error, Exception) and error is not timeout:
            raise timeout from error  # the error is what being cancelled looked like from inside


@overload
def transactional(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def transactional(
    propagation: Propagation = "required",
    *,
    timeout: float | None = None,
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
    after the call. Propagation: `required` joins or begins, `requires_new` begins one of its own, `mandatory` and
    `never` insist, `supports` takes what there is, `not_supported` runs outside. Errors: as transaction(), and
    ProgrammingError where the propagation does not fit.

    With `attempts` above 1 the function is called again, after a short pause, where it began the transaction itself and
    that was rolled back for a conflict with others: a serialization failure, a deadlock, no free slot to prepare in,
    or SQLite's file being busy. Never where the outcome is in doubt or heuristic, a database has not answered yet, or
    the timeout has struck. Only what it does in the transaction is undone before.

    With a `transaction_id`, each id's call happens once, as that of transaction(): a text, or, called with the call's
    own arguments, what makes one (`transaction_id=lambda number: f"invoice-{number}", record_in="orders"`). A call for
    what is done already raises AlreadyDone; where a function of another name has done it, ProgrammingError.
    """
    if callable(propagation) or isinstance(propagation, classmethod | property):
        return transactional()(propagation)  # without parentheses
    _check(propagation, attempts)
    note = checked_note(note)
    if transaction_id is not None or record_in is not None:
        _check_id(propagation, transaction_id, record_in)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = require_function(function)
        around = functools.partial(
            _around,
            name,
            propagation,
            timeout,
            origin=origin_of(function),
            rollback_on=rollback_on,
            dont_rollback_on=dont_rollback_on,
            note=note,
        )

        def once(args: Any, kwargs: Any) -> IdempotentTransaction | None:
            if transaction_id is None:
                return None
            made = transaction_id(*args, **kwargs) if callable(transaction_id) else transaction_id
            return _once(made, record_in, function)

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
                made, named = RetryPolicy(name, attempts), once(args, kwargs)
                while True:
                    try:
                        with around(made, named):
                            return await cast(Any, function)(*args, **kwargs)
                    except Exception as error:
                        pause = made.pause(error)
                        if pause is None:
                            raise
                    await asyncio.sleep(pause)

        else:

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                made, named = RetryPolicy(name, attempts), once(args, kwargs)
                while True:
                    try:
                        with around(made, named):
                            return function(*args, **kwargs)
                    except Exception as error:
                        pause = made.pause(error)
                        if pause is None:
                            raise
                    time.sleep(pause)

        return cast(Callable[P, T], call)

    return decorate


def _check(propagation: object, attempts: object) -> None:
    known = get_args(Propagation)
    if propagation not in known:
        raise ProgrammingError(f"transactional(): there is no propagation {propagation!r}: it is {' or '.join(known)}")
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ProgrammingError(f"transactional(): attempts is {attempts!r}: write a whole number from 1 on")
    if attempts > 1 and propagation not in _BEGINNING:
        raise ProgrammingError(
            f"transactional(): attempts={attempts} has no use with {propagation!r}, which begins no transaction, and "
            f"only who began one can repeat it: leave it out, or make it {' or '.join(_BEGINNING)}"
        )


def _check_id(propagation: str, transaction_id: Any, record_in: Any) -> None:
    from txpool.idempotency import checked_id, require_both

    require_both(transaction_id, record_in)
    if not callable(transaction_id):
        checked_id(transaction_id)
    if propagation not in _INSIDE:
        raise ProgrammingError(
            f"transactional(): a transaction_id has no use with {propagation!r}, which is not always in a transaction: "
            f"leave it out, or make it {' or '.join(_INSIDE)}"
        )


def _once(transaction_id: Any, record_in: Any, function: Any = None) -> IdempotentTransaction:
    from txpool.idempotency import IdempotentTransaction  # which needs datasources, and those this

    return IdempotentTransaction.of(transaction_id, record_in, function)


def origin_of(function: Any) -> dropped.Origin | None:
    """Where it is written."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code, 0)


@contextmanager
def _around(
    name: str,
    propagation: Propagation,
    timeout: float | None,
    made: RetryPolicy,
    once: IdempotentTransaction | None = None,
    *,
    origin: dropped.Origin | None,
    rollback_on: Exceptions,
    dont_rollback_on: Exceptions,
    note: str,
) -> Iterator[None]:
    """What is around each call of a decorated function."""
    ambient = current()
    inside = ambient is not None and not ambient.ended
    if propagation == "mandatory" and not inside:
        raise ProgrammingError(f"{name}() must be called within a transaction")
    if propagation == "never" and inside:
        raise ProgrammingError(f"{name}() must not be called within a transaction")
    if propagation == "supports":
        yield
        return
    if propagation == "never":
        with outside():
            yield
        return
    block = transaction(timeout, note=note)
    block._once = once
    block._independent = propagation == "requires_new"
    token = make_ambient(None) if propagation in ("requires_new", "not_supported") else None
    try:
        if propagation == "not_supported":
            with outside():
                yield
            return
        kept: BaseException | None = None
        with block as entered:
            if not block.joined:
                entered.origin = origin
            try:
                yield
            except dont_rollback_on as error:
                if isinstance(error, rollback_on):
                    raise
                kept = error
        if kept is not None:
            raise kept
    finally:
        made.begun = block.begun
        if token is not None:
            with contextlib.suppress(ValueError):  # a coroutine that was given up is closed anywhere
                restore_ambient(token)
