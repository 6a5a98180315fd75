"""transaction(): a block that is a transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Token
from functools import cache
from pkgutil import resolve_name
from sys import _getframe
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import ref

from txpool.errors import ProgrammingError, TransactionTimeout
from txpool.jobs import spark
from txpool.jobs.properties import publish
from txpool.sql.characteristics import UNSPECIFIED, Characteristics, IsolationLevel
from txpool.tm.ambient import ambient_variable, live, make_ambient
from txpool.tm.commit.annotations import checked_note
from txpool.tm.completion import dropped
from txpool.tm.completion.joined import is_joined, note_joined, note_left
from txpool.tm.completion.status import OPEN, UNDER_WAY
from txpool.tm.demarcation.propagation import require_recordable
from txpool.tm.manager import get_manager
from txpool.tm.rules.extent import CONTEXTLIB, Extent, entrances, extent_of, learn_entrance
from txpool.tm.rules.required import refuse_beginning_in_task
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.idempotency.once import IdempotentTransaction, RecordIn


class transaction:  # noqa: N801 - it reads as a word of the language: `with transaction():`
    """A block that commits at its end and rolls back on an exception; within another one it joins that.

    `timeout` in seconds counts for the block that begins the transaction. The exception of a nested block marks the
    whole rollback-only. `note` is one line for people, kept with the decision, so that an operator knows what a
    transaction in doubt was for; the first note that a transaction gets stays. If a generator or a coroutine is
    abandoned or closed within the block, a thread rolls back, and reports it: closing does not wait for the databases.

    With `isolation` ("serializable", say) or `read_only`, the local transactions in all databases begin so, whatever
    their datasources have. A nested block cannot ask for anything else (ProgrammingError), nor can a datasource take
    part whose database has no such level. In a read-only transaction the databases refuse to write.

    A `transaction_id`, such as "invoice-42", makes the transaction happen once: a row with it is written within the
    transaction into the datasource `record_in`, a file, a name or a DataSource. If an earlier run has committed,
    AlreadyDone is raised before the body. An earlier run that is still at work is awaited for some ten seconds, and one
    in doubt is resolved first, if recovery can. A block cannot check whether the earlier run did the same work. A
    nested block's row is a part of the whole transaction, which AlreadyDone leaves as it was. Errors, all before the
    body: AlreadyDone; OperationalError if the earlier run has not ended; ProgrammingError if the id is none; the
    driver's own if the row cannot be written.

    In an event loop, write `async with txpool.transaction()`: the transaction is the task's, and that of the tasks
    which it starts.

    Errors at the block's end: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError.
    """

    __slots__ = (
        "__weakref__",
        "_characteristics",
        "_idempotent",
        "_note",
        "_requires_new",
        "_span",
        "_timeout",
        "_token",
        "begun",
        "entered_transaction",
        "joined",
    )

    def __init__(
        self,
        timeout: float | None = None,
        *,
        isolation: IsolationLevel | None = None,
        read_only: bool | None = None,
        note: str = "",
        transaction_id: str | None = None,
        record_in: RecordIn | None = None,
    ) -> None:
        self._timeout = timeout
        self._characteristics = UNSPECIFIED
        if isolation is not None or read_only is not None:
            self._characteristics = Characteristics.of(isolation, read_only)
        self._note = note if note == "" else checked_note(note)
        self._idempotent = None
        if transaction_id is not None or record_in is not None:
            require_recordable(self._characteristics)
            self._idempotent = idempotent_transaction(transaction_id, record_in)
        #: The transaction that this block has begun; None if it has joined one.
        self.begun: Transaction | None = None
        #: It has joined one, the last time that it was entered.
        self.joined = False
        #: In a Spark task it may begin a transaction beside the driver's.
        self._requires_new = False

    def __enter__(self) -> Transaction:  # noqa: PLR0912 - each call costs every block
        ambient = ambient_variable.get()
        if ambient is not None and ambient.extent is not None:
            ambient = live(ambient, _getframe(1))
        if self.joined or self.begun is not None:
            self._require_left()
        if ambient is not None and not ambient.ended:
            if not ambient.active:
                ambient.require_active()
            ambient.characteristics.require_allows(self._characteristics, ambient.gtrid)
            self.entered_transaction, self.joined = ambient, True
            if self._idempotent is not None:
                self._idempotent.claim(ambient)
            if self._note and not ambient.note:
                ambient.note = self._note
            note_joined(ambient, self)
        else:
            if not self._requires_new and spark.is_loaded():
                refuse_beginning_in_task()
            frame = _getframe(1)
            origin, places, plain = entrances.get((id(frame.f_code), frame.f_lasti)) or learn_entrance(frame)
            extent: Extent | None = (frame, places, origin[1], None)
            if not plain:
                extent = extent_of(frame, origin[1])
                while frame.f_globals is CONTEXTLIB and frame.f_back is not None:  # an ExitStack's
                    frame = frame.f_back
                    origin = frame.f_code, frame.f_lasti
            if ambient is not None:
                dropped.require_not_abandoned(ambient)
            self.joined = False
            begun = get_manager().new_transaction(self._timeout, characteristics=self._characteristics)
            try:
                self._begin(begun)
            except BaseException:  # an interrupt: the block is not entered, so that nobody would end what is ambient
                if ambient_variable.get() is begun:
                    make_ambient(ambient)
                begun.block = None
                raise
            # From here to the end no function is called: an interrupt in one would leave the transaction ambient.
            begun.origin, begun.extent, begun.may_be_empty = origin, extent, False
            self.begun = begun
            if self._idempotent is not None:
                try:
                    self._idempotent.claim(self.entered_transaction)
                except BaseException as error:
                    self.__exit__(type(error), error, error.__traceback__)
                    raise
        return self.entered_transaction

    def _require_left(self) -> None:
        """ProgrammingError if it was entered, and not left: it knows of one entrance, so the other would not end."""
        entered = self.entered_transaction
        if entered.status not in UNDER_WAY or entered.abandoned or entered.of_parent_process:
            return
        if is_joined(entered, self) if self.joined else entered.block == ref(self):
            raise ProgrammingError(
                f"this block was entered before, in {entered.gtrid}, and is not left yet: each `with` needs a block of "
                "its own, which `txpool.transaction()` makes. Nothing was done"
            )

    @classmethod
    def of_call(
        cls,
        timeout: float | None,
        note: str,
        characteristics: Characteristics,
        idempotent: IdempotentTransaction | None,
        *,
        requires_new: bool,
    ) -> transaction:
        """The block around a call of a decorated function."""
        block = cls(timeout, note=note)
        block._characteristics = characteristics
        block._idempotent = idempotent
        block._requires_new = requires_new
        return block

    @classmethod
    def entered(cls, begun: Transaction) -> transaction:
        """A block that is entered already, for code that leaves it by `must_end`, `end` and `leave_context`."""
        block = cls()
        block._begin(begun)
        return block

    def _begin(self, transaction: Transaction) -> None:
        self.entered_transaction = transaction
        transaction.scoped = True
        # If this block is collected without having been left, its transaction was left behind. A finaliser of its
        # own would be called at the end of each, and swallow an interrupt that comes then.
        transaction.block = ref(self, transaction.left_behind)
        if self._note:
            transaction.note = self._note
        if transaction.trace is not None:
            self._span = transaction.trace.enter()
        self._token: Token[Transaction | None]
        self._token = transaction.token = make_ambient(transaction)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.must_end(error):
            return
        # It ends while it is still ambient, since before_completion callbacks work in it.
        entered = self.entered_transaction
        try:
            if error is None:
                entered.end_commit()
            else:
                self.end(error)
        except BaseException:
            if entered.status in OPEN:  # an interrupt has come before its end
                dropped.roll_back_abandoned(entered)
            raise
        finally:
            ambient_variable.reset(self._token)  # here: an interrupt in a function of ours would leave it ambient
            entered.extent = entered.block = None
            if entered.trace is not None or spark.is_loaded():
                self._tell_that_left()

    def __aenter__(self) -> Coroutine[Any, Any, Transaction]:
        entered: Coroutine[Any, Any, Transaction] = _in_task("enter")(self, _getframe(1))
        return entered

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        left: Coroutine[Any, Any, None] = _in_task("leave")(self, error)
        return left

    def must_end(self, error: BaseException | None) -> bool:
        """Whether this block must end the transaction now; if it has joined one, an error marks that rollback-only.

        ProgrammingError, after a rollback, if the block is left in another thread or context than it was entered in.
        """
        if self.joined:
            if error is not None:
                self.entered_transaction.set_rollback_only(error)
            note_left(self.entered_transaction, self)
            return False
        try:
            # Perhaps in a finaliser, which must do no I/O and take no lock.
            abandoned = error is not None and isinstance(error, GeneratorExit)
            ambient_variable.reset(self._token)
            self._token = self.entered_transaction.token = ambient_variable.set(self.entered_transaction)
        except ValueError as wrong_context:
            if abandoned:
                dropped.roll_back_abandoned(self.entered_transaction)
                return False
            self.entered_transaction.end_rollback()
            raise ProgrammingError(
                f"the block of {self.entered_transaction.gtrid} is left in another thread or context than it was "
                "entered in (by a generator that goes on elsewhere, as FastAPI's synchronous dependencies do?): what "
                "was done within it was rolled back. What other code did meanwhile may have been outside of it. Enter "
                "and leave the block in one thread and context"
            ) from error or wrong_context
        except BaseException:  # an interrupt: it may be ambient by a token that nobody has
            outer = self._token.old_value
            make_ambient(None if outer is Token.MISSING else outer)
            dropped.roll_back_abandoned(self.entered_transaction)
            raise
        if abandoned:
            try:
                dropped.roll_back_abandoned(self.entered_transaction)
            finally:
                self.leave_context()
        return not abandoned

    def leave_context(self) -> None:
        """Make the ambient transaction, and the current span, what they were before the block."""
        ambient_variable.reset(self._token)
        self.entered_transaction.extent = self.entered_transaction.block = None
        self._tell_that_left()

    def _tell_that_left(self) -> None:
        """Tell Spark's jobs and the tracer of the ambient transaction, which is what it was before the block."""
        if spark.is_loaded():
            publish(ambient_variable.get(), self.entered_transaction)
        if self.entered_transaction.trace is not None:
            self.entered_transaction.trace.leave(self._span)

    def end(self, error: BaseException | None) -> None:
        """Commit, or roll back for an error. Errors: as `Transaction.commit` and `Transaction.rollback`."""
        if error is None:
            self.entered_transaction.end_commit()
            return
        if self.entered_transaction.of_parent_process:
            return  # a forked child has nothing to roll back, and its own error, or exit, goes on
        if self.entered_transaction.trace is not None:
            self.entered_transaction.trace.failed(error)
        self.entered_transaction.end_rollback()
        timeout = self.entered_transaction.rollback_cause
        if isinstance(timeout, TransactionTimeout) and isinstance(error, Exception) and error is not timeout:
            raise timeout from error  # the error is that of a statement which the timeout has cancelled


@cache
def _in_task(name: str) -> Callable[..., Any]:
    """What enters or leaves a block in a task; by name, since it is above this."""
    found: Callable[..., Any] = resolve_name(f"txpool.aio.block:{name}")
    return found


def idempotent_transaction(transaction_id: Any, record_in: Any, function: Any = None) -> IdempotentTransaction:
    """The work that happens once under this id; the function is what does it, if that is known."""
    from txpool.idempotency.once import IdempotentTransaction  # which needs datasources, and those this

    return IdempotentTransaction.of(transaction_id, record_in, function)
