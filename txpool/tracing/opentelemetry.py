"""Traces by OpenTelemetry: a transaction's span, and within it those of its datasources, its phases and Spark's tasks.

`instrument()` turns them on. The tracer provider's sampler, processors and exporters decide where they go.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from txpool import tracing
from txpool.errors import ConfigurationError
from txpool.tm.commit.phase import Phase
from txpool.tm.commit.request import Outcome
from txpool.xid import split_gtrid

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace as api
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigurationError(
        "traces for OpenTelemetry need opentelemetry-api, which is not installed: pip install 'txpool[metrics]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from txpool.resources.base import BranchOutcome, BranchRecord
    from txpool.tm.commit.request import Result
    from txpool.tm.enlistment import TakesPart

logger = logging.getLogger("txpool")

P = ParamSpec("P")
T = TypeVar("T")

_propagator = TraceContextTextMapPropagator()
_FLUSH_TIMEOUT_MS = 2_000  # milliseconds


def instrument(tracer_provider: TracerProvider | None = None, *, in_tasks: Callable[[], Any] | None = None) -> None:
    """Trace the transactions that begin from now on, and recovery's work, by this provider (None: the global one).

    Spark's tasks run in other processes: `in_tasks` makes the provider there, once for each process. It is sent with
    the job, as Spark's functions are. Without it, tasks use the global provider of their own process.
    """
    tracing.tracer = _Tracer(tracer_provider, in_tasks)


def uninstrument() -> None:
    """Trace no transaction that begins from now on."""
    tracing.tracer = None


class Instrumentor:
    """For `opentelemetry-instrument`, which finds it by the entry point `opentelemetry_instrumentor`."""

    def instrument(self, **options: Any) -> None:
        instrument(options.get("tracer_provider"))

    def uninstrument(self, **_: Any) -> None:
        uninstrument()


def _logging_errors(method: Callable[P, T]) -> Callable[P, T | None]:
    """Errors of the provider are logged, and the transaction goes on."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return method(*args, **kwargs)
        except Exception:
            logger.exception("a span could not be made or ended; the transaction goes on")
            return None

    return guarded


class _Tracer:
    def __init__(self, provider: TracerProvider | None, in_tasks: Callable[[], Any] | None) -> None:
        self.in_tasks = in_tasks
        self._provider = provider
        self._tracer = api.get_tracer("txpool", tracer_provider=provider)

    @_logging_errors
    def transaction(self, gtrid: str, traceparent: str = "") -> _Spans:
        return _Spans(self._tracer, "txpool.transaction", _gtrid_attributes(gtrid), _context_of(traceparent))

    def plan(self, gtrid: str) -> str:
        return self._plan(gtrid) or ""

    @_logging_errors
    def _plan(self, gtrid: str) -> str:
        spans = _Spans(self._tracer, "txpool.plan", _gtrid_attributes(gtrid), None)
        spans.close()
        return spans.traceparent

    @_logging_errors
    def task(self, gtrid: str, traceparent: str, numbers: Mapping[str, int]) -> _Spans:
        attributes = _gtrid_attributes(gtrid) | {f"txpool.{name}": value for name, value in numbers.items()}
        return _TaskSpans(self._tracer, "txpool.task", attributes, _context_of(traceparent))

    def recover(
        self, verb: str, record: BranchRecord, traceparent: str, act: Callable[[BranchRecord], BranchOutcome]
    ) -> BranchOutcome:
        spans = self._recovering(verb, record, traceparent)
        try:
            outcome = act(record)
        except BaseException as error:
            if spans is not None:
                spans.failed(error)
                spans.close()
            raise
        if spans is not None:
            spans.branch_ended(outcome.value, decided=_OUTCOME_OF[verb])
            spans.close()
        return outcome

    @_logging_errors
    def _recovering(self, verb: str, record: BranchRecord, traceparent: str) -> _Spans:
        attributes = _gtrid_attributes(record.xid.gtrid) | {"txpool.bqual": record.xid.bqual}
        attributes |= {"txpool.datasource": record.datasource}
        return _Spans(self._tracer, f"txpool.recovery.{verb}", attributes, _context_of(traceparent))

    @_logging_errors
    def flush(self) -> None:
        flush = getattr(self._provider or api.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(_FLUSH_TIMEOUT_MS)


class _Spans:
    """A Trace: one span, and the spans within it, which end with it at the latest."""

    def __init__(self, tracer: api.Tracer, name: str, attributes: Mapping[str, Any], context: Context | None) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(name, context, attributes=attributes)
        self._inside = api.set_span_in_context(self._span, context)
        self._datasources: dict[str, Span] = {}
        self._phase: tuple[Phase, Span] | None = None

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._inside)
        return carrier.get("traceparent", "")

    @_logging_errors
    def enter(self) -> object:
        return contexts.attach(api.set_span_in_context(self._span))

    @_logging_errors
    def leave(self, token: Any) -> None:
        if token is not None:
            contexts.detach(token)

    @_logging_errors
    def enlisting(self, datasource: TakesPart[Any]) -> None:
        if datasource.name not in self._datasources:
            scheme = datasource.url.partition(":")[0]
            system, name = _BROKERS.get(scheme, ("db.system.name", scheme))
            attributes = {"txpool.datasource": datasource.name, "txpool.mode": datasource.mode, system: name}
            self._datasources[datasource.name] = self._tracer.start_span(
                "txpool.datasource", self._inside, api.SpanKind.CLIENT, attributes
            )

    @_logging_errors
    def phase(self, phase: Phase) -> None:
        self._end_phase(phase)
        if phase not in _WITHOUT_SPAN:
            self._phase = phase, self._tracer.start_span(f"txpool.{phase.exported}", self._inside)

    def _end_phase(self, following: Phase | None) -> None:
        if self._phase is not None:
            (phase, span), self._phase = self._phase, None
            if (phase, following) in _FAILURES:
                span.set_status(api.StatusCode.ERROR, f"{phase.value} failed")
            span.end()

    @_logging_errors
    def failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._span.set_attribute("error.type", type(error).__qualname__)
        self._span.set_status(api.StatusCode.ERROR, type(error).__qualname__)

    @_logging_errors
    def branch_ended(self, outcome: str, *, decided: str) -> None:
        """Called with the outcome of the branch that this span is about."""
        _end_branch_span(self._span, outcome, decided)

    @_logging_errors
    def ended(self, result: Result, note: str, *, committing: bool, rollback_cause: BaseException | None) -> None:
        outcome, decided = result.outcome, "committed" if result.outcome is Outcome.COMMITTED else "rolled back"
        for name, span in list(self._datasources.items()):
            if name in result.branch_outcomes:
                _end_branch_span(span, result.branch_outcomes[name].value, decided)
        self._span.set_attribute("txpool.outcome", outcome.name.lower())
        self._span.set_attribute("txpool.datasources", sorted({*self._datasources, *result.branch_outcomes}))
        if note:
            self._span.set_attribute("txpool.note", note)
        if rollback_cause is not None or outcome is not (Outcome.COMMITTED if committing else Outcome.ROLLED_BACK):
            cause = rollback_cause or result.cause
            if cause is not None:
                self._span.set_attribute("error.type", type(cause).__qualname__)
            self._span.set_status(api.StatusCode.ERROR, outcome.value)
        self.close()

    @_logging_errors
    def resolved(self, outcome: Outcome) -> None:
        self._end_phase(None)
        attributes = {"txpool.outcome": outcome.name.lower()}
        self._tracer.start_span("txpool.settled", self._inside, attributes=attributes).end()

    @_logging_errors
    def link(self, traceparents: Collection[str]) -> None:
        for each in dict.fromkeys(traceparents):
            linked = api.get_current_span(_propagator.extract({"traceparent": each}, contexts.Context()))
            if linked.get_span_context().is_valid:
                self._span.add_link(linked.get_span_context())

    @_logging_errors
    def close(self) -> None:
        self._end_parts()
        if self._span.is_recording():
            self._span.end()

    def _end_parts(self) -> None:
        self._end_phase(None)
        while self._datasources:
            self._datasources.popitem()[1].end()


class _TaskSpans(_Spans):
    """The spans of a Spark task, which go on after the task's part of the transaction has ended."""

    def ended(self, result: Result, note: str, *, committing: bool, rollback_cause: BaseException | None) -> None:
        """Does nothing, since the transaction ends on the driver."""


def _end_branch_span(span: Span, outcome: str, decided: str) -> None:
    span.set_attribute("txpool.answer", outcome)
    if outcome != decided:
        span.set_status(api.StatusCode.ERROR, outcome)


def _gtrid_attributes(gtrid: str) -> dict[str, Any]:
    return {"txpool.gtrid": gtrid, "txpool.node": split_gtrid(gtrid).node}


def _context_of(traceparent: str) -> Context | None:
    """The context of a span of another process; None, which means the current one, without a traceparent."""
    return _propagator.extract({"traceparent": traceparent}, contexts.Context()) if traceparent else None


#: By the scheme of a url, what OpenTelemetry calls a system that is no database: the attribute, and its value.
_BROKERS = {"kafka": ("messaging.system", "kafka"), "tcp": ("messaging.system", "activemq")}
#: Phases that have no span, since nothing is sent in them.
_WITHOUT_SPAN = frozenset({Phase.COMPLETE, Phase.ENDED, Phase.IN_DOUBT})
#: Pairs of a phase and the one that follows, in which the first has failed.
_FAILURES = frozenset(
    {
        (Phase.PREPARE, Phase.ROLLBACK),
        (Phase.DECIDE, Phase.ROLLBACK),
        (Phase.DECIDE, Phase.RESOLVE),
        (Phase.RESOLVE, Phase.IN_DOUBT),
        (Phase.ONE_PHASE, Phase.IN_DOUBT),
    }
)
#: The branch outcome that each verb of recovery asks for.
_OUTCOME_OF = {"commit": "committed", "rollback": "rolled back"}
