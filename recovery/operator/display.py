"""What people read: a block for each transaction, whose gtrid stands whole on a line of its own, and can be copied."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from datetime import datetime

from recovery.operator.audit import AuditEntry
from recovery.operator.listing import BranchState, InDoubt
from recovery.scan.expiry import Expired
from recovery.scan.report import AlarmKind, ScanReport
from txpool.log.base import Heuristic

Row = tuple[str, str]

#: Alarms that other rows say already: what has not answered, and, by the scan that finds it, what ended otherwise.
_SHOWN_BY_OTHER_ROWS = (AlarmKind.UNREACHABLE.value, AlarmKind.HEURISTIC.value)
_LABEL_WIDTH = 12  # the width of a row's label, with the space behind it


def format_list(found: Iterable[InDoubt]) -> str:
    """A short block for each transaction."""
    return "\n\n".join(_block(each.gtrid, [*_head(each), *_branches(each), *_tail(each)]) for each in found)


def format_transaction(each: InDoubt) -> str:
    """All that is known of one transaction, branch by branch."""
    rows = [("node", each.node), ("incarnation", each.incarnation), *_head(each)]
    rows += [("branch", f"{branch.gid} in {_state(branch)}") for branch in each.branches]
    rows += [("ended", f"{name}: {end}") for name, end in sorted(each.ends.items())]
    rows += _tail(each)
    rows += [("by hand", _audit_entry(deed)) for deed in each.history]
    return _block(each.gtrid, rows)


def format_report(report: ScanReport) -> str:
    """What a scan has done, and its sum in one line."""
    blocks = [(e.gid, ("committed", f"in {e.datasource}: {e.why}")) for e in report.committed]
    blocks += [(e.gid, ("rolled back", f"in {e.datasource}: {e.why}")) for e in report.rolled_back]
    for e in report.left_alone:
        blocks.append(
            (e.gid or e.gtrid, ("left alone", f"in {e.datasource}: {e.reason}" if e.datasource else e.reason))
        )
    blocks += [(h.gtrid, ("heuristic", _heuristic(h))) for h in report.heuristics]
    blocks += _unanswered_rows(report.unreachable)
    blocks += [(step, ("failed", reason)) for step, reason in report.errors.items()]
    blocks += [
        (alarm.subject, ("alarm", str(alarm))) for alarm in report.alarms if alarm.kind not in _SHOWN_BY_OTHER_ROWS
    ]
    return "\n".join([*(_block(title, [row]) for title, row in blocks), str(report)])


def format_unanswered(found: Mapping[str, str]) -> str:
    """The datasources that have not answered, in their own words."""
    return "\n".join(_block(name, [row]) for name, row in _unanswered_rows(found))


def format_unconfigured(found: Mapping[str, str]) -> str:
    """The databases in which our nodes prepare, and that the configuration does not lead to."""
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
    """What people have done by hand."""
    return "\n".join(_block(deed.gtrid or "this node", [("by hand", _audit_entry(deed))]) for deed in found)


def _block(title: str, rows: Iterable[Row]) -> str:
    """No word is ever broken: a terminal that is narrower than a branch's name wraps that by itself."""
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
    return "\n".join(lines)


def _head(each: InDoubt) -> list[Row]:
    age = [("age", _age(each.age))] if each.age is not None else []
    return [
        *([("note", each.note)] if each.note else []),
        ("process", each.standing),
        *age,
        ("decision", f"{each.decision}, in {each.kept}" if each.kept else each.decision),
    ]


def _branches(each: InDoubt) -> list[Row]:
    states = "; ".join(map(_state, each.branches))
    return [("branches", states)] if states else []


def _state(branch: BranchState) -> str:
    owner = f" (owner {branch.owner})" if branch.owner else ""
    error = f"; last error: {branch.error}" if branch.error else ""
    return f"{branch.datasource}: {branch.state}{owner}{error}"


def _tail(each: InDoubt) -> list[Row]:
    after = "; repair by hand, then forget" if each.heuristics else ""
    return [*_heuristic_rows(each), ("next", f"{each.next}{after}")]


def _unanswered_rows(found: Mapping[str, str]) -> list[tuple[str, Row]]:
    return [(name, ("no answer", reason)) for name, reason in found.items()]


def _heuristic_rows(each: InDoubt | Expired) -> list[Row]:
    return [("heuristic", _heuristic(heuristic)) for heuristic in each.heuristics]


def _heuristic(found: Heuristic) -> str:
    return f"{found.bqual} in {found.datasource}: decided to {found.decided}, ended {found.ended}"


def _audit_entry(deed: AuditEntry) -> str:
    return f"{deed.command} {_when(deed.when)} by {deed.who} ({deed.reason or 'no reason was given'}): {deed.outcome}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
