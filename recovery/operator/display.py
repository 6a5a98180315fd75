"""Formats what `txpool-recovery` prints for people.

Each transaction is a block, whose first line is the whole gtrid, so that it can be copied.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from recovery.operator.audit import AuditEntry
from recovery.operator.listing import BranchState, InDoubt
from recovery.scan.modules.expiry import Expired
from recovery.scan.outboxes import OutboxStatus, shortened
from recovery.scan.report import AlarmKind, ScanReport
from txpool.log.base import Heuristic

Row = tuple[str, str]

#: Kinds of alarms that other rows of a report show already.
_SHOWN_BY_OTHER_ROWS = (AlarmKind.UNREACHABLE.value, AlarmKind.HEURISTIC.value)
_LABEL_WIDTH = 12  # with the space after the label


def format_short(each: InDoubt) -> str:
    """A short block for a transaction."""
    return _block(each.gtrid, [*_head(each), *_branches(each), *_tail(each)])


def format_transaction(each: InDoubt) -> str:
    """All that is known of one transaction, branch by branch."""
    rows = [("node", each.node), ("incarnation", each.incarnation), *_head(each)]
    rows += [("branch", f"{branch.gid} in {_state(branch)}") for branch in each.branches]
    rows += [("ended", f"{name}: {end}") for name, end in sorted(each.ends.items())]
    rows += _tail(each)
    rows += [("by hand", _audit_entry(entry)) for entry in each.history]
    return _block(each.gtrid, rows)


def report_texts(report: ScanReport) -> Iterator[str]:
    """What a scan has done, one after the other, with a summary at the end."""
    for what, ends in (("committed", report.committed), ("rolled back", report.rolled_back)):
        for ended in ends:
            yield _block(ended.gid, [(what, f"in {ended.datasource}: {ended.why}")])
    for left in report.left_alone:
        reason = f"in {left.datasource}: {left.reason}" if left.datasource else left.reason
        yield _block(left.gid or left.gtrid, [("left alone", reason)])
    blocks = [(heuristic.gtrid, ("heuristic", _heuristic(heuristic))) for heuristic in report.heuristics]
    blocks += _unanswered_rows(report.unreachable)
    blocks += [(step, ("failed", reason)) for step, reason in report.errors.items()]
    blocks += [
        (alarm.subject, ("alarm", str(alarm))) for alarm in report.alarms if alarm.kind not in _SHOWN_BY_OTHER_ROWS
    ]
    yield from (_block(title, [row]) for title, row in blocks)
    yield str(report)


def format_outboxes(found: Iterable[OutboxStatus]) -> str:
    """A block for each outbox, and for each session."""
    return "\n".join(
        _block(f"{'outbox of' if each.kind == 'outbox' else each.kind} {each.datasource}", _outbox_rows(each))
        for each in found
    )


def _outbox_rows(each: OutboxStatus) -> list[Row]:
    if each.reason:
        return [("not read", each.reason)]
    since = "" if each.oldest is None else f", the oldest for {_age(each.oldest)}"
    error = f"; last error: {shortened(each.last_error)}" if each.last_error else ""
    parked = [("parked", f"{each.parked}{error}")] if each.parked else []
    waiting = [] if each.waiting is None else [("waiting", f"{each.waiting}{since}")]
    return [*waiting, *parked] or [("parked", "0")]


def format_unanswered(found: Mapping[str, str]) -> str:
    """The datasources that have not answered, with their errors."""
    return "\n".join(_block(name, [row]) for name, row in _unanswered_rows(found))


def format_unconfigured(found: Mapping[str, str]) -> str:
    """The databases in which our nodes prepare and that the configuration does not name."""
    return "\n".join(_block(name, [("missing", text)]) for name, text in found.items())


def format_expired(found: Iterable[Expired]) -> str:
    """What has expired."""
    return "\n".join(
        _block(
            each.name,
            [("expired", f"{each.kind}{f', {_when(each.when)}' if each.when else ''}"), *_heuristic_rows(each)],
        )
        for each in found
    )


def format_audit(found: Iterable[AuditEntry]) -> str:
    """The commands that people have run by hand."""
    return "\n".join(_block(entry.gtrid or "this node", [("by hand", _audit_entry(entry))]) for entry in found)


def _block(title: str, rows: Iterable[Row]) -> str:
    """A title and its rows, wrapped between words: the name of a branch stays whole, and can be copied.

    An error, a role or a database may have any name: what is no letter does nothing to the terminal.
    """
    width = max(shutil.get_terminal_size().columns, 40)
    lines = [title]
    for label, text in rows:
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=f"  {label:<{_LABEL_WIDTH}}",
            subsequent_indent=" " * (_LABEL_WIDTH + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join("".join(each if each.isprintable() else "?" for each in line) for line in lines)


def _head(each: InDoubt) -> list[Row]:
    age = [("age", _age(each.age))] if each.age is not None else []
    return [
        *([("note", each.note)] if each.note else []),
        ("process", each.standing),
        *age,
        ("decision", f"{each.decision}, in {each.kept}" if each.kept else each.decision),
        *([("beside", f"the last resource {each.last_resource}, which may have committed")] * bool(each.last_resource)),
    ]


def _branches(each: InDoubt) -> list[Row]:
    states = "; ".join(map(_state, each.branches))
    return [("branches", states)] if states else []


def _state(branch: BranchState) -> str:
    owner = f" (owner {branch.owner})" if branch.owner else ""
    error = f"; last error: {branch.error}" if branch.error else ""
    return f"{branch.datasource}: {branch.state}{owner}{error}"


def _tail(each: InDoubt) -> list[Row]:
    repair = "; repair the data, then forget it" if each.heuristics else ""
    return [*_heuristic_rows(each), ("next", f"{each.next}{repair}")]


def _unanswered_rows(found: Mapping[str, str]) -> list[tuple[str, Row]]:
    return [(name, ("no answer", reason)) for name, reason in found.items()]


def _heuristic_rows(each: InDoubt | Expired) -> list[Row]:
    return [("heuristic", _heuristic(heuristic)) for heuristic in each.heuristics]


def _heuristic(found: Heuristic) -> str:
    branch = f"{found.bqual} in {found.datasource}" if found.bqual else found.datasource
    return f"{branch}: decided to {found.decided}, ended {found.ended}"


def _audit_entry(entry: AuditEntry) -> str:
    reason = entry.reason or "no reason was given"
    return f"{entry.command} {_when(entry.when)} by {entry.who} ({reason}): {entry.outcome}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
