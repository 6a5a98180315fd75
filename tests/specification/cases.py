"""What transactions TLC explores, and which rule it explores without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: A transaction, the rules that are left out of it, and how many faults there may be.
Case = dict[str, Any]


def case(
    name: str,
    branches: Iterable[str] = ("orders", "audit"),
    *,
    tasks: Iterable[str] = (),
    early: Iterable[str] = (),
    losers: Iterable[str] = (),
    marked: bool = False,
    disk: bool = False,
    noted: Iterable[str] | None = None,
    recoverers: int = 1,
    without: int | None = None,
    fates: int = 0,
    crashes: int = 0,
    leases: int = 0,
) -> Case:
    """One of Protocol.tla's cases, with the faults that Explore.tla allows."""
    return {
        "name": name,
        "branches": {*branches},
        "tasks": {*tasks},
        "early": {*early},
        "losers": {*losers},
        "marked": marked,
        "overdue": False,
        "disk": disk,
        "configured": {*branches},
        "noted": {*(branches if noted is None else noted)},
        "recoverers": {f"R{number + 1}" for number in range(recoverers)},
        "without": set() if without is None else {without},
        "faults": {"fates": fates, "crashes": crashes, "leases": leases},
    }


_ONE = ("orders",)
#: Both are prepared from the start, which leaves fewer steps.
_BOTH = ("orders", "audit")
_LOSER = ("orders", "zombie")

#: All rules are kept.
WHOLE = (
    case("two tasks, a lease", tasks=_BOTH, leases=1),
    case("two tasks, a crash", tasks=_BOTH, crashes=1),
    case("one, a fate", _ONE, fates=1, crashes=1),
    case("one+marked, a fate", _ONE, marked=True, fates=1),
    case("task+marked, a lease", _ONE, tasks=_ONE, marked=True, leases=1),
    case("one named early+marked, a lease", _ONE, early=_ONE, marked=True, leases=1),
    case("one+a loser, a crash", _LOSER, losers=("zombie",), crashes=1),
    case("task, a disk, a crash", _ONE, tasks=_ONE, disk=True, crashes=1),
)

#: A rule is left out: a violation is found.
WITHOUT = (
    case("1", tasks=_BOTH, without=1, crashes=1),
    case("2", tasks=_BOTH, without=2, fates=1),
    case("4", without=4, crashes=1),
    case("5", without=5, fates=1),
    case("6", _ONE, tasks=_ONE, without=6, fates=1, crashes=1),
    case("7", tasks=_BOTH, without=7, crashes=1),
    case("8", _ONE, tasks=_ONE, marked=True, without=8, crashes=1),
    case("9", _ONE, marked=True, without=9, leases=1),
    case("10", tasks=_BOTH, without=10, leases=1),
    case("11", tasks=_BOTH, without=11, leases=1),
    case("12", without=12, fates=1),
    case("13", _ONE, without=13, crashes=1),
    case("14", _ONE, tasks=_ONE, without=14, fates=1),
    case("15", _ONE, tasks=_ONE, without=15, fates=1, leases=1),
    case("16", _ONE, marked=True, without=16, leases=1),
    case("17", _ONE, marked=True, without=17, crashes=1),
    case("18", _ONE, marked=True, disk=True, without=18, crashes=1),
    case("19", _ONE, marked=True, without=19, leases=1),
    case("20", _ONE, marked=True, without=20, leases=1),
    case("21", tasks=_BOTH, without=21, crashes=1),
    case("23", tasks=_BOTH, disk=True, without=23, crashes=1),
    case("24", tasks=_BOTH, disk=True, without=24, fates=1, crashes=1),
    case("26", tasks=_ONE, without=26),
    case("27", without=27, crashes=1),
    case("28", _LOSER, losers=("zombie",), without=28),
    case("30", _ONE, without=30, fates=1),
    case("33", _ONE, noted=(), without=33, crashes=1),
    case("35", _ONE, early=_ONE, marked=True, without=35, crashes=1),
)

#: By rule, why no case leaves it out.
NOT_LEFT_OUT = {
    "3": "rule 1 demands the same order: listings, liveness, finished marks, decisions; not broken alone",
    "22": "a COMMIT that nobody has decided breaks rule 4, too",
    "25": "it is about processes, and there is one that decides",
    "29": "staged rows are not in the specification",
    "31": "who owns a branch is not in the specification: every name is true there",
    "32": "privileges are not in the specification",
    "34": "heuristics are not in the specification",
    "36": "it is about a reader's locks, which the specification has not: its end changes no outcome",
    "37": "what waits in a pass is not in the specification: only the order of listings, which is rule 1",
    "38": "recovery has no abort record in Explore.tla, and so nothing is overdue there",
    "39": "files are not in the specification",
    "40": "files are not in the specification",
}
