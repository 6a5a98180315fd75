"""Events that a program fires in a transaction, and who is told of them, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from txpool.tm.completion.status import Status
from txpool.tm.completion.synchronizations import Synchronizations


class _Observer:
    """What is called with events of a class, in one phase."""

    def __init__(self, call: Callable[[Any], object], phase: str, event: type) -> None:
        self._call, self.phase, self.event = call, phase, event

    def tell(self, event: object, _: Status | None = None) -> object:
        return self._call(event) if self in _observers else None  # it may have stopped since the phase came


#: In the order of their observe(). Each step is one operation of the dict, since other threads read and change it.
_observers: dict[_Observer, None] = {}


def observe_events(call: Callable[[Any], object], phase: str, event: type) -> Callable[[], None]:
    """Call with events of this class from now on, until what is returned is called."""
    observer = _Observer(call, phase, event)

    def end() -> None:
        _observers.pop(observer, None)

    _observers[observer] = None
    return end


def phases_after(status: Status) -> tuple[str, ...]:
    """The phases that have come with this status at the end."""
    if status in (Status.PREPARED, Status.IN_DOUBT):  # nobody here knows yet how it ends; a Spark task's is prepared
        return ("after",)
    return ("success" if status is Status.COMMITTED else "failure", "after")


def _calls(event: object, *phases: str) -> list[partial[object]]:
    return [
        partial(observer.tell, event)
        for observer in list(_observers)
        if observer.phase in phases and isinstance(event, observer.event)
    ]


class Events:
    """What is fired in one transaction. Who observes when a phase comes is told of all, in the order of fire()."""

    def __init__(self, synchronizations: Synchronizations) -> None:
        self._synchronizations = synchronizations
        self._fired: list[object] = []
        synchronizations.add_after(self._tell_after)

    def fire(self, event: object) -> None:
        # Interposed: an ordinary callback is not called any more once interposed ones are, and these may fire.
        self._synchronizations.add_before(partial(self._tell_before, event), interposed=True)
        self._fired.append(event)

    def _tell_before(self, event: object) -> None:
        """As callbacks of their own, so that nobody is called any more once one has marked it rollback-only."""
        for call in _calls(event, "before"):
            self._synchronizations.add_before(call, interposed=True)

    def _tell_after(self, status: Status) -> None:
        """As callbacks of their own, so that each is called, whatever comes of the others; the last one first."""
        calls = [call for event in self._fired for call in _calls(event, *phases_after(status))]
        self._synchronizations.add_after(*reversed(calls))
