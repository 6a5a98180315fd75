"""The status page in HTML. It shows the last scan's result, and asks no database."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from recovery.operator.last_scan import DatasourceStatus, Overview, Standing
from recovery.operator.listing import BranchState, InDoubt
from recovery.scan.outboxes import OutboxStatus, shortened
from txpool.pool import PoolStatistics
from txpool.tm.commit.progress import PhaseTwoProgress

_HTML = files("recovery.service").joinpath("page.html").read_text(encoding="utf-8")
_TEMPLATE = Template(_HTML)


def _hash(tag: str) -> str:
    inside = _HTML.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


#: The page's Content-Security-Policy: a browser runs only its own script and style, recognised by their hashes.
POLICY = (
    f"default-src 'none'; script-src 'sha256-{_hash('script')}'; style-src 'sha256-{_hash('style')}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ICONS = {"good": "2e7d50", "wait": "d79921", "bad": "c0392b", "": "8a8880"}
#: How many items a list shows at most; `txpool-recovery list` shows all.
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class StateLine:
    """The state of recovery in one line. `mood` is good, wait, bad, or empty if it is not known yet."""

    mood: str
    headline: str


def state_line(standing: Standing) -> StateLine:
    """The state after the last scan, by what matters most."""
    overview = standing.overview
    if standing.failure:
        return StateLine("bad", "The last scan failed")
    if overview is None:
        return StateLine("", "The first scan is under way")
    heuristic, waiting = overview.tally.heuristic, overview.tally.waiting
    found = (
        (heuristic, "bad", f"{_count(heuristic, 'transaction')} ended otherwise than decided"),
        (overview.report.alarms, "bad", _count(len(overview.report.alarms), "alarm")),
        (overview.report.errors, "bad", "A step of the last scan failed"),
        (overview.report.suspended, "wait", "Recovery is suspended"),
        (waiting, "wait", f"{_count(waiting, 'transaction')} in doubt"),
        (True, "good", "Nothing is in doubt"),
    )
    return next(StateLine(mood, headline) for applies, mood, headline in found if applies)


def page(
    standing: Standing,
    *,
    title: str,
    period: float,
    pools: Iterable[PoolStatistics],
    acts: bool,
    under_way: PhaseTwoProgress | None = None,
) -> str:
    """The whole page. With `acts`, it offers a scan. `period` is the manager's, in seconds. `under_way` is the pass."""
    summary, overview = state_line(standing), standing.overview
    parts = [
        f'<header class="{summary.mood}"><p>{escape(title)}</p><h1>{escape(summary.headline)}</h1>',
        f"<p>{_last_scan_line(overview, period)}{_SCAN if acts else ''}</p>{_under_way(under_way)}</header>",
    ]
    if standing.failure:
        parts.append(
            f'<section class="banner bad"><span class="kind">Failed</span>{escape(standing.failure)}</section>'
        )
    if overview is not None:
        parts += [
            _suspended(overview),
            _tiles(overview),
            _alarms(overview),
            _in_doubt(overview),
            _datasources(overview),
            _outboxes(overview),
            _last_scan_done(overview),
        ]
    parts.append(_pools(list(pools)))
    return _TEMPLATE.substitute(
        title=escape(f"{summary.headline} · {title}"),
        icon=_ICONS[summary.mood],
        main="\n".join(filter(None, parts)),
        footer=_FOOTER,
    )


_SCAN = '<button data-post="/api/scan" data-label="Scan now">Scan now</button>'
_FOOTER = (
    "<span>This page refreshes itself, and asks no database.</span>"
    '<a href="/api/in-doubt">in doubt, as JSON</a><a href="/metrics">metrics</a><a href="/healthz">health</a>'
)


def _last_scan_line(overview: Overview | None, period: float) -> str:
    if overview is None:
        return "Its result will be shown here."
    passes = _count(overview.passes, "pass", "passes") if overview.passes else "no pass"
    ago = age(max(0.0, time.time() - overview.at))
    return f"Last scan {ago} ago: {passes} in {_duration(overview.seconds)}. The next begins {age(period)} after it."


def _under_way(progress: PhaseTwoProgress | None) -> str:
    return f"<p>A scan is under way: {progress}.</p>" if progress is not None and progress.total else ""


def _suspended(overview: Overview) -> str:
    if not overview.report.suspended:
        return ""
    return f'<section class="banner"><span class="kind">Suspended</span>{escape(overview.report.suspended)}</section>'


def _tiles(overview: Overview) -> str:
    tally = overview.tally
    heuristic, oldest = tally.heuristic, tally.oldest
    asked = [each for each in overview.datasources if each.answered is not None]
    unanswered = [each.name for each in asked if not each.answered]
    prepared = sum(each.prepared for each in asked)
    alarms = overview.report.alarms
    kinds = {alarm.kind for alarm in alarms}
    tiles = [
        ("Heuristic", heuristic, "ended otherwise than decided" if heuristic else "none", "bad" if heuristic else ""),
        (
            "In doubt",
            tally.waiting,
            f"and {tally.of_others} in living processes" if tally.of_others else "transactions",
            "",
        ),
        ("Prepared", prepared, f"oldest {age(oldest)}" if oldest is not None else "branches that hold locks", ""),
        (
            "Datasources",
            f"{len(asked) - len(unanswered)} of {len(asked)}",
            f"no answer from {', '.join(unanswered)}" if unanswered else "have answered",
            "bad" if unanswered else "",
        ),
        ("Alarms", len(alarms), ", ".join(sorted(kinds)) or "none", "bad" if alarms else ""),
    ]
    return f"<section><dl class='tiles'>{''.join(_tile(*tile) for tile in tiles)}</dl></section>"


def _tile(name: str, number: object, note: str, mood: str) -> str:
    return f'<div><dt>{name}</dt><dd class="number">{number}</dd><dd class="note {mood}">{escape(note)}</dd></div>'


def _alarms(overview: Overview) -> str:
    items = [
        f'<li><p><span class="kind bad-text">{alarm.kind}</span>{escape(alarm.text)}</p>'
        f'<p class="meta">since {_moment(alarm.since)}</p></li>'
        for alarm in overview.report.alarms[:_MOST_SHOWN]
    ]
    return _list("Alarms", items, len(overview.report.alarms), "alarms") if items else ""


def _in_doubt(overview: Overview) -> str:
    items = [_transaction(each) for each in overview.in_doubt[:_MOST_SHOWN]]
    if not items:
        nothing = "Nothing is in doubt, as far as the datasources have answered."
        return f'<section><h2>In doubt</h2><p class="empty">{nothing}</p></section>'
    return _list("In doubt", items, len(overview.in_doubt))


def _transaction(each: InDoubt) -> str:
    gtrid = escape(each.gtrid)
    decision = f"{each.decision}, in {each.kept}" if each.kept else each.decision
    note = f"<p>{escape(each.note)}</p>" if each.note else ""
    repair = "; repair the data, then <code>txpool-recovery forget</code>" if each.heuristics else ""
    return (
        f'<li><div class="head"><span class="name"><code>{gtrid}</code>'
        f'<button class="copy" data-copy="{gtrid}">copy</button></span>'
        f'<span class="age">{"" if each.age is None else age(each.age)}</span></div>'
        f'{note}<p class="meta">{escape(decision)} · {escape(each.standing)}</p>'
        f'<p class="next">Next: {escape(each.next)}{repair}.</p>'
        f'<ul class="branches">{"".join(_branch(branch) for branch in each.branches)}</ul></li>'
    )


def _branch(branch: BranchState) -> str:
    mood = "" if branch.state in ("prepared", "not prepared") else "bad"
    owner = f", owner {escape(branch.owner)}" if branch.owner else ""
    error = f'<br><span class="bad-text">{escape(branch.error)}</span>' if branch.error else ""
    return (
        f'<li class="{mood}" title="{escape(branch.gid)}"><b>{escape(branch.datasource)}</b> {branch.state}{owner}'
        f"{error}</li>"
    )


def _datasources(overview: Overview) -> str:
    return _table("Datasources", ("", "mode", "last scan", "prepared", "slots"), map(_datasource, overview.datasources))


def _datasource(status: DatasourceStatus) -> tuple[str, ...]:
    answer = "answered" if status.answered else '<span class="bad-text">no answer</span>'
    slots = ""
    if status.slots is not None:
        taken, maximum = status.slots.taken, status.slots.maximum
        meter = f'<meter min="0" max="{max(maximum, 1)}" high="{0.8 * maximum:g}" optimum="0" value="{taken}"></meter>'
        slots = f"{meter}{taken} of {maximum}"
    prepared = str(status.prepared) if status.answered and status.mode == "xa" else ""
    return escape(status.name), status.mode, "not asked" if status.answered is None else answer, prepared, slots


def _outboxes(overview: Overview) -> str:
    rows = map(_outbox, overview.outboxes[:_MOST_SHOWN])
    names = ("", "waiting", "oldest", "parked", "last error")
    return _table("Outboxes and sessions", names, rows) if overview.outboxes else ""


def _outbox(status: OutboxStatus) -> tuple[str, ...]:
    name = escape(status.datasource)
    if status.reason:
        return name, "", "", "", f'<span class="bad-text">not read: {escape(status.reason)}</span>'
    oldest = "" if status.oldest is None else age(status.oldest)
    parked = f'<span class="bad-text">{status.parked}</span>' if status.parked else "0"
    return (
        name,
        "" if status.waiting is None else str(status.waiting),
        oldest,
        parked,
        escape(shortened(status.last_error)),
    )


def _last_scan_done(overview: Overview) -> str:
    report = overview.report
    ended = (("committed", report.committed), ("rolled back", report.rolled_back))
    rows = [
        (what, f"<code>{escape(e.gid)}</code>", e.datasource, e.why) for what, es in ended for e in es[:_MOST_SHOWN]
    ]
    rows += [("failed", escape(step), "", reason) for step, reason in report.errors.items()]
    shown = [(what, branch, escape(where), escape(why)) for what, branch, where, why in rows[:_MOST_SHOWN]]
    if not shown:
        return ""
    count = len(report.committed) + len(report.rolled_back) + len(report.errors)
    more = _more(count, "in the daemon's log")
    return _table("What the last scan has done", ("", "branch", "datasource", "why"), shown) + more


def _pools(pools: list[PoolStatistics]) -> str:
    names = ("", "idle", "used", "at most", "waiting", "timeouts", "leaks")
    figures: Callable[[PoolStatistics], tuple[object, ...]] = lambda p: (  # noqa: E731 - a row's shape
        p.idle,
        p.taken,
        p.max_size,
        p.waiting,
        p.timeouts,
        p.leaks,
    )
    rows = ((escape(pool.name), *map(str, figures(pool))) for pool in pools)
    return _table("Pools of this process", names, rows) if pools else ""


# -- their parts --------------------------------------------------------------------------------------------------


def _table(title: str, names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>" for first, *rest in rows)
    return (
        f'<section><h2>{title}</h2><div class="table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _list(title: str, items: list[str], total: int, kind: str = "") -> str:
    more = _more(total, "<code>txpool-recovery list</code> has them all")
    return f'<section><h2>{title}</h2><ul class="list {kind}">{"".join(items)}</ul>{more}</section>'


def _more(total: int, where: str) -> str:
    return f'<p class="meta">{total - _MOST_SHOWN} more are not shown: {where}.</p>' if total > _MOST_SHOWN else ""


def _count(number: int, word: str, words: str = "") -> str:
    return f"{number} {word if number == 1 else words or word + 's'}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def age(seconds: float) -> str:
    """A length of time, in words."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole:.0f} {unit}" if whole >= 10 or rest < length / 10 else f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
