"""The cases of the kit, and the runs of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from txpool.config.secrets import redact
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases import local, marked, prepared, protocol
from txpool.conformance.cases.case import Case, CaseResult, NotGiven, NotRun, Verdict, Violation
from txpool.conformance.server import KillableServer
from txpool.conformance.subject import Subject, Unreachable

_EVERY_MODE = ("xa", "cmr", "last-resource", "local")
_LONGEST = 400  # characters of a reason


def _in_every_mode(run: Callable[[Subject], None]) -> dict[str, Callable[[Subject], None]]:
    return dict.fromkeys(_EVERY_MODE, run)


CASES = (
    Case(
        "dropped-client",
        "prepare, drop the client, finish from elsewhere",
        {"xa": prepared.dropped_client, "cmr": marked.dropped_client},
    ),
    Case(
        "killed-server",
        "prepare, kill the server, finish",
        {"xa": prepared.killed_server, "cmr": marked.killed_server},
    ),
    Case("unknown-xid", "an xid that is not there", {"xa": prepared.unknown_xid}),
    Case(
        "duplicate-xid",
        "an xid that is there already",
        {"xa": prepared.duplicate_xid, "cmr": marked.duplicate_gtrid},
    ),
    Case("foreign-xid", "an xid that is another product's", {"xa": prepared.foreign_xid}),
    Case("two-finishing", "two that finish at once", {"xa": prepared.two_finishing, "cmr": marked.two_finishing}),
    Case("reader", "a reader, and who is none", _in_every_mode(local.reader)),
    Case("swallowed-failure", "a failed statement swallowed, then commit", _in_every_mode(local.swallowed_failure)),
    Case("own-commit", "the user's own COMMIT inside", _in_every_mode(local.own_commit)),
    Case("limits-of-names", "limits of names", {"xa": prepared.limits_of_names, "cmr": marked.limits_of_names}),
    Case("undone", "work undone before PREPARE", {"xa": protocol.undone}),
    Case("named-again", "a name that is given twice", {"xa": protocol.named_again}),
    Case("gone", "a branch that is gone, or elsewhere", {"xa": protocol.gone}),
    Case("forgotten", "an end that is forgotten", {"xa": protocol.forgotten}),
    Case("listing", "the listing", {"xa": prepared.listing, "cmr": marked.listing}),
    Case("fence", "the fence of a marked table", {"cmr": marked.fence}),
    Case("hanging-owner", "an owner that hangs", {"xa": prepared.hanging_owner, "cmr": marked.hanging_owner}),
)


@dataclass(frozen=True, slots=True)
class Conformance:
    """The results of one datasource. `left` is what could not be removed, for people; `trouble` why it ended early."""

    name: str
    mode: str
    url: str
    results: tuple[CaseResult, ...] = ()
    left: tuple[str, ...] = ()
    trouble: str = ""
    #: Where the trouble was raised; empty if the database could not be connected to.
    traceback: str = ""
    #: The database could not be connected to.
    unreachable: bool = False
    #: What people should know beside the results; empty mostly.
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether no case failed, all could be run that were to be run, and nothing is left behind."""
        return not self.trouble and not self.left and all(each.verdict is not Verdict.FAILED for each in self.results)


def run_cases(
    settings: DataSourceSettings,
    *,
    server: KillableServer | None = None,
    cases: Iterable[Case] = CASES,
    patience: float = 30.0,
    limit: float = 120.0,
    when_ended: Callable[[CaseResult], object] = lambda _: None,
) -> Conformance:
    """Run the cases against one datasource. Problems are results; only an interrupt is raised, and cleans up first.

    `patience` is how many seconds a branch may take until it can be ended from elsewhere, and `limit` how many a whole
    case may take. `when_ended` is called with each result.
    """

    def redacted(error: object) -> str:
        return " ".join(redact(str(error), settings.secrets).split())[:_LONGEST]

    def raised_at(error: Exception) -> str:
        return redact("".join(traceback.format_exception(error)), settings.secrets).rstrip()

    results: list[CaseResult] = []
    trouble, where, note, left, unreachable = "", "", "", [], False
    subject = Subject(settings, server=server, patience=patience)
    try:
        subject.open()
        note = redacted(subject.other_runs())
        for result in _results(subject, cases, limit, redacted, raised_at):
            results.append(result)
            when_ended(result)
    except Exception as error:
        trouble = redacted(error) or type(error).__name__
        unreachable = isinstance(error, Unreachable)
        where = "" if unreachable else raised_at(error)
    finally:
        left = [redacted(each) for each in subject.close()]
    return Conformance(
        settings.name, settings.mode, settings.url, tuple(results), tuple(left), trouble, where, unreachable, note
    )


def _results(
    subject: Subject,
    cases: Iterable[Case],
    limit: float,
    redacted: Callable[[object], str],
    raised_at: Callable[[Exception], str],
) -> Iterator[CaseResult]:
    for case in cases:
        run = case.by_mode.get(subject.mode)
        if run is None:
            yield CaseResult(case, Verdict.INAPPLICABLE, f"nothing to test with mode={subject.mode}")
            continue
        error = subject.errands.within(limit, partial(run, subject))
        subject.end_clients()
        if error is None:
            yield CaseResult(case, Verdict.PASSED)
        elif isinstance(error, NotRun):
            verdict = Verdict.SKIPPED if isinstance(error, NotGiven) else Verdict.INAPPLICABLE
            yield CaseResult(case, verdict, str(error))
        else:
            own = not isinstance(error, Violation)
            reason = redacted(f"{type(error).__name__}: {error}" if own else error)
            yield CaseResult(case, Verdict.FAILED, reason, raised_at(error) if own else "")
