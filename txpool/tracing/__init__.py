"""Traces of transactions, and the gtrid in log records.

Nothing is traced until `txpool.tracing.opentelemetry.instrument()` is called, which needs the extra `metrics`. The rest
of txpool knows only the protocols here. No span has a statement's text, a value, a url or an error's message: of an
error it has the class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from txpool.tracing.logs import GtridFilter, attach_filter

if TYPE_CHECKING:
    from txpool.resources.base import BranchOutcome, BranchRecord
    from txpool.tm.commit.phase import Phase
    from txpool.tm.commit.request import Outcome, Result
    from txpool.tm.enlistment import TakesPart

__all__ = ["GtridFilter", "Trace", "Tracer"]


class Trace(Protocol):
    """The spans of one transaction, or of a Spark task's part of one. Thread-safe; no method raises an Exception."""

    @property
    def traceparent(self) -> str:
        """Its place in the trace, in W3C's form, for spans of other processes; may be empty."""

    def enter(self) -> object:
        """Make it the parent of what this thread or task traces from now on; the result is for `leave`."""

    def leave(self, token: object) -> None: ...

    def enlisting(self, datasource: TakesPart[Any]) -> None:
        """Called when a datasource begins to take part."""

    def phase(self, phase: Phase) -> None:
        """Called when a phase of the transaction's end begins."""

    def failed(self, error: BaseException) -> None:
        """Called with the error that ends the transaction."""

    def ended(self, result: Result, note: str, *, committing: bool, rollback_cause: BaseException | None) -> None:
        """Called when commit (`committing`) or rollback has ended."""

    def resolved(self, outcome: Outcome) -> None:
        """Called with the outcome of a transaction that was in doubt."""

    def link(self, traceparents: Collection[str]) -> None:
        """Called with the places in traces of the messages that it receives: anybody's text."""

    def close(self) -> None:
        """End the spans; may be called again."""


class Tracer(Protocol):
    """Makes the spans of this process. Thread-safe; no method raises an Exception of its own."""

    #: Makes the provider in a Spark task's process.
    in_tasks: Callable[[], Any] | None

    def transaction(self, gtrid: str, traceparent: str = "") -> Trace | None:
        """The trace of a transaction that begins: within `traceparent`, or else the span that is current here."""

    def plan(self, gtrid: str) -> str:
        """The traceparent for a transaction that may begin later with this gtrid, and for its tasks until then."""

    def task(self, gtrid: str, traceparent: str, numbers: Mapping[str, int]) -> Trace | None:
        """The trace of a Spark task's part of a transaction."""

    def recover(
        self, verb: str, record: BranchRecord, traceparent: str, act: Callable[[BranchRecord], BranchOutcome]
    ) -> BranchOutcome:
        """Call `act`, by which recovery ends a branch, within a span; raises what `act` raises."""

    def flush(self) -> None:
        """Export the spans that have ended, before this process may end."""


#: None while nothing is traced.
tracer: Tracer | None = None

attach_filter()
