"""The status page, in HTML: made of what the last scan has left, and of nothing else."""

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

from recovery.operator.last_scan import DatasourceStatus, LastScan, Overview
from recovery.operator.listing import BranchState, InDoubt
from txpool.pool import PoolStatistics

_HTML = files("recovery.service").joinpath("page.html").read_text(encoding="utf-8")
_TEMPLATE = Template(_HTML)


def _hash(tag: str) -> str:
    inside = _HTML.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


#: What a browser may do with the page: run its own script and use its own style, byte by byte, and nothing else.
POLICY = (
    f"default-src 'none'; script-src 'sha256-{_hash('script')}'; style-src 'sha256-{_hash('style')}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ICONS = {"good": "2e7d50", "wait": "d79921", "bad": "c0392b", "": "8a8880"}
#: The most of anything that is shown; there may be thousands, and `txpool-recovery list` has them all.
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it stands, at a glance: `mood` is good, wait, bad, or nothing where it is not known yet."""

    mood: str
    headline: str


def verdict(last_scan: LastScan) -> Verdict:
    """The one thing that matters most."""
    seen = last_scan.overview
    if last_scan.failure:
        return Verdict("bad", "The last scan failed")
    if seen is None:
        return Verdict("", "The first scan is under way")
    noted = sum(bool(each.heuristics) for each in seen.in_doubt)
    waiting = sum(each.attention and each.unresolved for each in seen.in_doubt)
    found = (
        (noted, "bad", f"{_count(noted, 'transaction')} ended otherwise than decided"),
        (seen.report.alarms, "bad", _count(len(seen.report.alarms), "alarm")),
        (seen.report.errors, "bad", "A step of the last scan failed"),
        (seen.report.suspended, "wait", "Recovery is suspended"),
        (waiting, "wait", f"{_count(waiting, 'transaction')} in doubt"),
        (True, "good", "Nothing is in doubt"),
    )
    return next(Verdict(mood, headline) for applies, mood, headline in found if applies)


def page(last_scan: LastScan, *, title: str, period: float, pools: Iterable[PoolStatistics], acts: bool) -> str:
    """The whole page; with `acts`, what a token allows is offered. `period` is the manager's, in seconds."""
    told, seen = verdict(last_scan), last_scan.overview
    parts = [
        f'<header class="{told.mood}"><p>{escape(title)}</p><h1>{escape(told.headline)}</h1>',
        f"<p>{_last_scan_line(seen, period)}{_SCAN if acts else ''}</p></header>",
    ]
    if last_scan.failure:
        parts.append(
            f'<section class="banner bad"><span class="kind">Failed</span>{escape(last_scan.failure)}</section>'
        )
    if seen is not None:
        parts += [
            _suspended(seen),
            _tiles(seen),
            _alarms(seen),
            _in_doubt(seen),
            _datasources(seen),
            _last_scan_done(seen),
        ]
    parts.append(_pools(list(pools)))
    return _TEMPLATE.substitute(
        title=escape(f"{told.headline} · {title}"),
        icon=_ICONS[told.mood],
        main="\n".join(filter(None, parts)),
        footer=_FOOTER,
    )


_SCAN = '<button data-post="/api/scan" data-label="Scan now">Scan now</button>'
_FOOTER = (
    "<span>Refreshed by itself; looking asks no database.</span>"
    '<a href="/api/in-doubt">in doubt, as JSON</a><a href="/metrics">metrics</a><a href="/healthz">health</a>'
)


def _last_scan_line(seen: Overview | None, period: float) -> str:
    if seen is None:
        return "What is in doubt is known when it is through."
    passes = _count(seen.passes, "pass", "passes") if seen.passes else "no pass"
    ago = age(max(0.0, time.time() - seen.at))
    return f"Last scan {ago} ago: {passes} in {_duration(seen.seconds)}. The next begins {age(period)} after it."


def _suspended(seen: Overview) -> str:
    if not seen.report.suspended:
        return ""
    return f'<section class="banner"><span class="kind">Suspended</span>{escape(seen.report.suspended)}</section>'


def _tiles(seen: Overview) -> str:
    ours = [each for each in seen.in_doubt if each.unresolved and each.attention]
    theirs = sum(each.unresolved and not each.attention for each in seen.in_doubt)
    oldest = max((each.age for each in seen.in_doubt if each.unresolved and each.age is not None), default=None)
    asked = [site for site in seen.datasources if site.answered is not None]
    silent = [site.name for site in asked if not site.answered]
    prepared = sum(site.prepared for site in asked)
    alarms = seen.report.alarms
    kinds = {alarm.kind for alarm in alarms}
    noted = sum(bool(each.heuristics) for each in seen.in_doubt)
    tiles = [
        ("Heuristic", noted, "ended otherwise than decided" if noted else "none", "bad" if noted else ""),
        ("In doubt", len(ours), f"and {theirs} in living processes" if theirs else "transactions", ""),
        ("Prepared", prepared, f"oldest {age(oldest)}" if oldest is not None else "branches that hold locks", ""),
        (
            "Datasources",
            f"{len(asked) - len(silent)} of {len(asked)}",
            f"no answer from {', '.join(silent)}" if silent else "have answered",
            "bad" if silent else "",
        ),
        ("Alarms", len(alarms), ", ".join(sorted(kinds)) or "none stands", "bad" if alarms else ""),
    ]
    return f"<section><dl class='tiles'>{''.join(_tile(*tile) for tile in tiles)}</dl></section>"


def _tile(name: str, number: object, note: str, mood: str) -> str:
    return f'<div><dt>{name}</dt><dd class="number">{number}</dd><dd class="note {mood}">{escape(note)}</dd></div>'


def _alarms(seen: Overview) -> str:
    items = [
        f'<li><p><span class="kind bad-text">{alarm.kind}</span>{escape(alarm.text)}</p>'
        f'<p class="meta">since {_moment(alarm.since)}</p></li>'
        for alarm in seen.report.alarms[:_MOST_SHOWN]
    ]
    return _list("Alarms", items, len(seen.report.alarms), "alarms") if items else ""


def _in_doubt(seen: Overview) -> str:
    items = [_transaction(each) for each in seen.in_doubt[:_MOST_SHOWN]]
    if not items:
        nothing = "Nothing is in doubt, as far as the datasources have answered."
        return f'<section><h2>In doubt</h2><p class="empty">{nothing}</p></section>'
    return _list("In doubt", items, len(seen.in_doubt))


def _transaction(each: InDoubt) -> str:
    gtrid = escape(each.gtrid)
    decided = f"{each.decision}, in {each.kept}" if each.kept else each.decision
    note = f"<p>{escape(each.note)}</p>" if each.note else ""
    repair = "; repair by hand, then <code>txpool-recovery forget</code>" if each.heuristics else ""
    return (
        f'<li><div class="head"><span class="name"><code>{gtrid}</code>'
        f'<button class="copy" data-copy="{gtrid}">copy</button></span>'
        f'<span class="age">{"" if each.age is None else age(each.age)}</span></div>'
        f'{note}<p class="meta">{escape(decided)} · {escape(each.standing)}</p>'
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


def _datasources(seen: Overview) -> str:
    return _table(
        "Datasources", ("", "takes part as", "last scan", "prepared", "slots"), map(_datasource, seen.datasources)
    )


def _datasource(site: DatasourceStatus) -> tuple[str, ...]:
    answer = "answered" if site.answered else '<span class="bad-text">no answer</span>'
    slots = ""
    if site.slots is not None:
        taken, maximum = site.slots.taken, site.slots.maximum
        meter = f'<meter min="0" max="{max(maximum, 1)}" high="{0.8 * maximum:g}" optimum="0" value="{taken}"></meter>'
        slots = f"{meter}{taken} of {maximum}"
    prepared = str(site.prepared) if site.answered and site.mode == "xa" else ""
    return escape(site.name), site.mode, "not asked" if site.answered is None else answer, prepared, slots


def _last_scan_done(seen: Overview) -> str:
    report = seen.report
    rows = [("committed", f"<code>{escape(e.gid)}</code>", e.datasource, e.why) for e in report.committed]
    rows += [("rolled back", f"<code>{escape(e.gid)}</code>", e.datasource, e.why) for e in report.rolled_back]
    rows += [("failed", escape(step), "", reason) for step, reason in report.errors.items()]
    shown = [(what, branch, escape(where), escape(why)) for what, branch, where, why in rows[:_MOST_SHOWN]]
    if not shown:
        return ""
    more = _more(len(rows), "in the daemon's log")
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
    """A length of time, as people say it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole:.0f} {unit}" if whole >= 10 or rest < length / 10 else f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
