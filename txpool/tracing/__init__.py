"""Traces of transactions, and the gtrid in log records.

Nothing is traced until `txpool.tracing.opentelemetry.instrument()` is called, which needs the extra `metrics`. What
stands here is all that the rest of txpool knows of it. No span has a statement's text, a value, a url or an error's
words: an error is told by its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from txpool.tracing.logs import GtridFilter, attach_filter

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.base import BranchOutcome, BranchRecord
    from txpool.tm.commit_request import Outcome, Result
    from txpool.tm.phase import Phase

__all__ = ["GtridFilter", "Trace", "Tracer"]


class Trace(Protocol):
    """The spans of one transaction, or of a Spark task's part of one. Thread-safe; no method raises an Exception."""

    @property
    def traceparent(self) -> str:
        """Its place in the trace, as W3C writes it, for those who go on with it elsewhere; or empty."""

    def enter(self) -> object:
        """Let what this thread or task traces from now on be a part of it; the answer is for `leave`."""

    def leave(self, token: object) -> None: ...

    def enlisting(self, datasource: DataSource) -> None:
        """A datasource begins to take part, until the transaction's end."""

    def phase(self, phase: Phase) -> None:
        """Hear that a phase of its end begins."""

    def failed(self, error: BaseException) -> None:
        """It is to end for this error, or has ended by it."""

    def ended(self, result: Result, note: str, *, committing: bool, rollback_cause: BaseException | None) -> None:
        """Hear how it ended for its caller, who has committed or rolled back, and why it could only roll back."""

    def resolved(self, outcome: Outcome) -> None:
        """Hear how it ended after all, having been in doubt."""

    def close(self) -> None:
        """It is over; may be called again."""


class Tracer(Protocol):
    """Makes the spans of this process. Thread-safe; no method raises an Exception of its own."""

    #: What makes the provider in a Spark task's process.
    in_tasks: Callable[[], Any] | None

    def transaction(self, gtrid: str, traceparent: str = "") -> Trace | None:
        """One that begins: within what is current here, or where `traceparent` says."""

    def plan(self, gtrid: str) -> str:
        """A transaction of that name may begin later: the traceparent that it, and its tasks, have until then."""

    def task(self, gtrid: str, traceparent: str, numbers: Mapping[str, int]) -> Trace | None:
        """A Spark task's part of one."""

    def recover(
        self, verb: str, record: BranchRecord, traceparent: str, act: Callable[[BranchRecord], BranchOutcome]
    ) -> BranchOutcome:
        """Have recovery end a branch; raises what `act` raises."""

    def flush(self) -> None:
        """Hand over what has ended, before this process may be gone."""


#: None while nothing is traced.
tracer: Tracer | None = None

attach_filter()
