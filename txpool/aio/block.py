"""`async with txpool.transaction()`: the same block, entered and left in calls of the task."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from txpool.aio.bridge import run
from txpool.errors import HeuristicError, ProgrammingError, TransactionInDoubt
from txpool.tm.ambient import ambient

if TYPE_CHECKING:
    from txpool.tm.demarcation.block import transaction
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")


def require_in_loop(what: str) -> None:
    """ProgrammingError if the ambient transaction was begun synchronously: its locks would hold the loop."""
    here = ambient()
    if here is not None and not here.ended and not here.in_loop:
        raise ProgrammingError(
            f"{what} cannot work in {here.gtrid}, which was begun synchronously, and whose locks would hold the event "
            "loop: begin it by `async with txpool.transaction()`. Nothing was done"
        )


async def enter(block: transaction, frame: FrameType) -> Transaction:
    """As the block's `__enter__`. `frame` is the frame that enters it."""
    origin = frame.f_code, frame.f_lasti
    del frame
    require_in_loop("an `async with txpool.transaction()`")
    entered = await run(block.__enter__, dispose=lambda _: _abandon(block))
    if not block.joined:
        entered.origin = origin
    return entered


def _abandon(block: transaction) -> None:
    """The task was cancelled as the block was entered: nobody will leave that, and a thread rolls back."""
    block.__exit__(GeneratorExit, GeneratorExit(), None)


async def leave(block: transaction, error: BaseException | None) -> None:
    """As the block's `__exit__`. A cancellation marks the transaction rollback-only, and waits for its end."""
    kind = None if error is None else type(error)
    if isinstance(error, GeneratorExit):  # nobody awaits this
        block.__exit__(kind, error, error.__traceback__)
        return
    entered = block.entered_transaction
    try:
        await run(partial(block.__exit__, kind, error, None), told=partial(_mark, entered))
    except CancelledError as cancelled:
        _log_unheard(entered, cancelled.__cause__)
        raise
    except Exception as outcome:
        if not isinstance(error, CancelledError):
            raise
        _log_unheard(entered, outcome)
        raise error from outcome


def _mark(entered: Transaction, cancelled: BaseException) -> None:
    entered.set_rollback_only(cancelled)


def _log_unheard(entered: Transaction, outcome: BaseException | None) -> None:
    """An outcome that somebody must hear of, behind a CancelledError that most programs drop."""
    if isinstance(outcome, HeuristicError | TransactionInDoubt):
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
        begun = ambient()
        told = (lambda _: None) if begun is None else partial(_mark, begun)
        try:
            return await run(leave, told=told)
        except CancelledError as cancelled:
            if begun is not None and cancelled is not error:
                _log_unheard(begun, cancelled.__cause__)
            raise
        except Exception as outcome:
            if not isinstance(error, CancelledError):
                raise
            if begun is not None:
                _log_unheard(begun, outcome)
            raise error from outcome
