"""`async with txpool.transaction()`: the same block, entered and left in calls of the task."""

from __future__ import annotations

import logging
from asyncio import CancelledError, _get_running_loop
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from txpool.aio.bridge import current, run
from txpool.aio.lock import CompletionWait
from txpool.aio.poller import poller_of
from txpool.errors import HeuristicError, ProgrammingError, TransactionInDoubt
from txpool.loops import in_thread
from txpool.tm import own
from txpool.tm.ambient import ambient
from txpool.tm.completion import dropped
from txpool.tm.completion.joined import has_open_blocks
from txpool.tm.completion.status import OPEN
from txpool.tm.manager import get_manager
from txpool.tm.rules.extent import DISMISSED

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.own.resource import Resource
    from txpool.tm.completion.dropped import Origin
    from txpool.tm.demarcation.block import transaction
    from txpool.tm.transaction import Transaction

T = TypeVar("T")

logger = logging.getLogger("txpool")


def require_in_loop(source: DataSource | None) -> None:
    """ProgrammingError if the ambient transaction was begun synchronously: its locks would hold the loop.

    `source` is that of the connection which is asked for, or that is used; None for a block.
    """
    here = ambient()
    if here is not None and not here.in_loop and not here.ended:
        what = "an `async with txpool.transaction()`"
        if source is not None:
            what = f"an asynchronous connection of {source.name}"
        raise ProgrammingError(
            f"{what} cannot work in {here.gtrid}, which was begun synchronously, and whose locks would hold the event "
            "loop: begin it by `async with txpool.transaction()`. Nothing was done"
        )


async def enter(block: transaction, frame: FrameType) -> Transaction:
    """As the block's `__enter__`. `frame` is the frame that enters it."""
    origin = frame.f_code, frame.f_lasti
    del frame
    require_in_loop(None)
    loop = _get_running_loop()
    if loop is not None:  # else `run` refuses
        await poller_of(loop).begin(loop)
    entered = await run(block.__enter__, dispose=lambda _: _abandon(block))
    if not block.joined:
        entered.origin = origin
    return entered


def enlist(transaction: Transaction, resource: Resource) -> Coroutine[Any, Any, Any] | None:
    """As `Transaction.enlist`, to be awaited; None if this is called in no task."""
    if _get_running_loop() is None or current() is not None:
        return None
    return run(lambda: in_thread(own.enlist, transaction, resource))


def _abandon(block: transaction) -> None:
    """The task was cancelled as the block was entered: nobody will leave that, and a thread rolls back, unheard."""
    if not block.joined:
        block.entered_transaction.origin = None
    block.__exit__(GeneratorExit, GeneratorExit(), None)


async def leave(block: transaction, error: BaseException | None) -> None:
    """As the block's `__exit__`. A cancellation marks the transaction rollback-only, and waits for its end."""
    kind = None if error is None else type(error)
    if isinstance(error, GeneratorExit):  # nobody awaits this
        block.__exit__(kind, error, error.__traceback__)
        return
    await ended(block.entered_transaction, partial(block.__exit__, kind, error, None), error)


async def begin(timeout: float | None, origin: Origin | None = None) -> transaction:
    """A block that is entered here, whatever is ambient; for code that ends it by `dismiss`, and then leaves it here.

    It is left by `leave_context`, in the context in which it was begun.
    """
    from txpool.tm.demarcation.block import transaction

    begun = await run(lambda: get_manager().new_transaction(timeout), dispose=dropped.roll_back_abandoned)
    begun.origin = origin
    return transaction.entered(begun)


async def dismiss(block: transaction, error: BaseException | None) -> None:
    """End what `begin` has begun, in any context. Whoever has a copy of that is in no transaction until it is left."""
    entered = block.entered_transaction
    try:
        if not isinstance(error, GeneratorExit):  # nobody awaits this
            await ended(entered, partial(block.end, error), error)
    finally:
        if entered.status in OPEN:
            dropped.roll_back_abandoned(entered)
        entered.block = None
        if not has_open_blocks(entered):  # else what is left of them would stand outside of it
            entered.extent = DISMISSED


async def ended(entered: Transaction | None, end: Callable[[], T], error: BaseException | None) -> T:
    """Call what ends a block with this error. A cancellation marks the transaction rollback-only, and waits for it."""
    try:
        return await run(end, told=CompletionWait(entered, cancelled=isinstance(error, CancelledError)))
    except CancelledError as cancelled:
        if cancelled is not error:
            _log_unheard(entered, cancelled.__cause__)
        raise
    except Exception as outcome:
        if not isinstance(error, CancelledError):
            raise
        _log_unheard(entered, outcome)
        raise error from outcome


def _log_unheard(entered: Transaction | None, outcome: BaseException | None) -> None:
    """An outcome that somebody must hear of, behind a CancelledError that most programs drop."""
    if entered is not None and isinstance(outcome, HeuristicError | TransactionInDoubt):
        logger.warning("%s: its task was cancelled, and %s", entered.gtrid, outcome)


class Entered:
    """A synchronous context manager around awaited code: it is entered and left in calls of the task."""

    __slots__ = ("_block", "_strict", "transaction")

    def __init__(self, block: AbstractContextManager[Any], *, strict: bool) -> None:
        self._block = block
        self._strict = strict

    async def __aenter__(self) -> Any:
        return await run(self._block.__enter__, strict=self._strict, dispose=self._dispose)

    def _dispose(self, _: object) -> None:
        self._block.__exit__(GeneratorExit, GeneratorExit(), None)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        leave = partial(self._block.__exit__, kind, error, trace)
        if isinstance(error, GeneratorExit):  # nobody awaits this
            return leave()
        return await ended(ambient(), leave, error)
