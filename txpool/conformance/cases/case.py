"""A case of the kit: what it is called, what it does in each mode, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from txpool.errors import described

if TYPE_CHECKING:
    from txpool.conformance.subject import Subject


class Violation(Exception):
    """The resource manager has broken a rule; the text says what it did, and what that would lead to."""


class NotRun(Exception):
    """There is nothing to test here, or the kit refuses to; the text is the reason."""


class NotGiven(NotRun):
    """The case needs something that was not given; the text says what."""


def require(held: object, broken: str) -> None:
    """Raise `Violation` if the rule was not held."""
    if not held:
        raise Violation(broken)


class Verdict(Enum):
    """How a case ended; the value is what the table shows."""

    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"  #: it would apply, and something that it needs was not given
    INAPPLICABLE = "-"  #: there is nothing to test in this mode, or in this kind of resource


@dataclass(frozen=True, slots=True)
class Case:
    """One case: `by_mode` has what it does in each mode in which it applies."""

    name: str
    title: str
    by_mode: Mapping[str, Callable[[Subject], None]]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case ended for one datasource; `reason` is empty if it passed."""

    case: Case
    verdict: Verdict
    reason: str = ""
    #: Where an error was raised that is no `Violation`: the code of the resource manager, its driver's or the kit's.
    traceback: str = ""


class Errands:
    """What a case has done by the thread that runs the kit, and not by its own.

    A server that is started by a thread may end with that thread.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, action: Callable[[], object]) -> None:
        """For the case's thread: have it done, and wait for its end. Raises its error."""
        done = threading.Event()
        errors: list[Exception] = []

        def errand() -> None:
            try:
                action()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self._queue.put(errand)
        done.wait()
        if errors:
            raise errors[0]

    def within(self, seconds: float, action: Callable[[], object]) -> Exception | None:
        """Do it in a thread of its own, which is given up if it takes longer; the error that ended it."""
        ended: list[Exception | None] = []

        def body() -> None:
            try:
                action()
            except Exception as error:
                ended.append(error)
            except BaseException as error:
                ended.append(Violation(f"it raised {described(error)}"))
            else:
                ended.append(None)
            self._queue.put(None)

        until = monotonic() + seconds
        threading.Thread(target=body, name="txpool-conformance", daemon=True).start()
        while not ended and (remaining := until - monotonic()) > 0:
            with suppress(Empty):
                errand = self._queue.get(timeout=min(remaining, 0.5))
                if errand is not None:
                    errand()
        return ended[0] if ended else Violation(f"it has not ended within {seconds:g} s, and was given up")


def at_once(actions: list[Callable[[], object]]) -> None:
    """Do them at the same time, in threads. Raises the first error."""
    barrier = threading.Barrier(len(actions))
    errors: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            barrier.wait()
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[action], daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
