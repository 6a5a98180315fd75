"""Callbacks around the end of a transaction, as JTA's Synchronization has them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

from txpool.errors import require_done
from txpool.tm.completion.status import Status

logger = logging.getLogger("txpool")

P = ParamSpec("P")


class Synchronizations:
    """One transaction's callbacks before and after completion. Used by the thread that ends the transaction."""

    __slots__ = ("_after", "_before", "_interposed")

    def __init__(self) -> None:
        self._before: list[Callable[[], object]] = []
        self._interposed: list[Callable[[], object]] = []
        self._after: list[Callable[[Status], object]] = []

    def add_before(self, callback: Callable[[], object], *, interposed: bool) -> None:
        (self._interposed if interposed else self._before).append(callback)

    def add_after(self, *callbacks: Callable[[Status], object]) -> None:
        self._after.extend(callbacks)

    def call_before(self, rollback_only: Callable[[], bool]) -> None:
        """Call those before completion, interposed ones last, for as long as the transaction may still commit."""
        for callbacks in (self._before, self._interposed):
            for callback in callbacks:  # a callback may register another, which is called in its turn
                if rollback_only():
                    return
                require_done("a callback before completion", callback())

    def call_after(self, status: Status) -> BaseException | None:
        """Call each of those after completion once, the last registered first; returns the first interrupt.

        If it raises, an interrupt has come between two callbacks: the next call goes on with those that are left.
        """
        after, interrupt = self._after, None
        while True:
            try:
                while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                    if not after:
                        return interrupt
                    callback = after[-1]
                    del after[-1]  # not pop(): an interrupt can come behind a call, and would lose it
                    try:
                        require_done("a callback after completion", callback(status))
                    except Exception:
                        _log_failure()
            except BaseException as error:
                interrupt = interrupt or error


def call_logging_errors(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call what cannot change the outcome any more: its errors are logged."""
    try:
        callback(*args, **kwargs)
    except Exception:
        _log_failure()


def _log_failure() -> None:
    logger.exception("a callback after the end of a transaction failed; the outcome stands")
