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
        self.call, self.phase, self.event = call, phase, event


#: In the order of their observe(). It is replaced, and never changed: another thread may be reading it.
_observers: tuple[_Observer, ...] = ()


def observe_events(call: Callable[[Any], object], phase: str, event: type) -> Callable[[], None]:
    """Call with events of this class from now on, until what is returned is called."""
    global _observers
    observer = _Observer(call, phase, event)

    def end() -> None:
        global _observers
        _observers = tuple(each for each in _observers if each is not observer)

    _observers = (*_observers, observer)
    return end


def phases_after(status: Status) -> tuple[str, str]:
    """The phases that have come with this final status."""
    return ("success" if status is Status.COMMITTED else "failure", "after")


def _calls(event: object, *phases: str) -> list[Callable[[], object]]:
    return [
        partial(observer.call, event)
        for observer in _observers
        if observer.phase in phases and isinstance(event, observer.event)
    ]


class Events:
    """What is fired in one transaction. Who observes when a phase comes is told of all, in the order of fire()."""

    def __init__(self, synchronizations: Synchronizations) -> None:
        self._synchronizations = synchronizations
        self._fired: list[object] = []
        self._told = 0  # how many of them before completion
        synchronizations.add_after(self._tell_after)

    def fire(self, event: object) -> None:
        self._fired.append(event)
        # Interposed: an ordinary callback is not called any more once interposed ones are, and these may fire.
        self._synchronizations.add_before(self._tell_before, interposed=True)

    def _tell_before(self) -> None:
        while self._told < len(self._fired):  # an observer may fire
            event = self._fired[self._told]
            self._told += 1
            for call in _calls(event, "before"):
                call()

    def _tell_after(self, status: Status) -> None:
        calls = Synchronizations()  # which calls each of them, whatever comes of the others: the last one first
        for event in reversed(self._fired):
            for call in reversed(_calls(event, *phases_after(status))):
                calls.add_after(partial(_without_status, call))
        if (interrupt := calls.call_after(status)) is not None:
            raise interrupt


def _without_status(call: Callable[[], object], status: Status) -> None:
    call()
