"""observe(): who is told of each transaction, or of events in transactions, as CDI's observers are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeVar, overload
from weakref import ref

from txpool.errors import ProgrammingError
from txpool.tm.events import observe_events, phases_after
from txpool.tm.manager import observers
from txpool.tm.transaction import Transaction

E = TypeVar("E")
_PHASES = ("begin", "before", "success", "failure", "after")


@overload
def observe(
    observer: Callable[[Transaction], object], phase: Literal["begin", "before", "success", "failure", "after"]
) -> Callable[[], None]: ...


@overload
def observe(
    observer: Callable[[E], object], phase: Literal["before", "success", "failure", "after"], event: type[E]
) -> Callable[[], None]: ...


def observe(
    observer: Callable[[Any], object],
    phase: Literal["begin", "before", "success", "failure", "after"],
    event: type | None = None,
) -> Callable[[], None]:
    """Call an observer with every transaction of this process from now on, at this phase of its life.

    With a class of `event`, call it with each event of that class that is fired in a transaction (`tx.fire(event)`),
    in the order in which they were fired. Returns a function that ends that; it may be called twice.

    `begin` runs as a transaction begins: an exception is raised there, and none has begun. `before` runs before
    completion, and its exception forces rollback. `success`, `failure` (it did not commit everywhere) and
    `after` (in any case) run after it, and their errors are logged. A transaction in doubt is neither a success nor a
    failure, nor is a Spark task's, which ends prepared: there only `after` runs. It may be called before configure(),
    or after, from any thread. Errors: ProgrammingError if there is no such phase, the event is no class, or the
    observer is a coroutine function.
    """
    phases = _PHASES if event is None else _PHASES[1:]
    if phase not in phases:
        raise ProgrammingError(f"there is no phase {phase!r} to observe: these are {', '.join(phases)}")
    if event is not None and not isinstance(event, type):
        raise ProgrammingError(f"events are observed by their class, and {event!r} is none. Nothing is observed")
    if iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
        raise ProgrammingError(
            f"{observer!r} is a coroutine function, and nobody would await what it returns: observe by a function, "
            "which may create a task. Nothing is observed"
        )
    return _observe_transactions(observer, phase) if event is None else observe_events(observer, phase, event)


def _observe_transactions(observer: Callable[[Transaction], object], phase: str) -> Callable[[], None]:
    def attach(begun: Transaction) -> None:
        if phase == "begin":
            observer(begun)
            return
        reference = ref(begun)

        def call() -> object:
            transaction = reference()
            return observer(transaction) if transaction is not None and attach in observers else None

        if phase == "before":
            begun.before_completion(call)
        else:
            begun.after_completion(lambda status: call() if phase in phases_after(status) else None)

    def end() -> None:
        with suppress(ValueError):  # it was called before, perhaps in another thread
            observers.remove(attach)

    observers.append(attach)
    return end
