"""What recovery saves in the log for people: errors of branches, how databases ended them, since when it has seen them.

`list` and `show` run in processes of their own, and read here what the daemon has found. No outcome depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from txpool.log.base import ENDS, DecisionLog, SideRecord
from txpool.log.formats import pack, unpack
from txpool.xid import parse

_ERROR = "branch error"
_SEEN = "first seen"


@dataclass(frozen=True, slots=True)
class SavedDetails:
    """The details that the log has."""

    #: By the branch's gid: the error of the last attempt to end it.
    errors: Mapping[str, str] = field(default_factory=dict)
    #: By gtrid and datasource: a `BranchOutcome`'s value.
    ends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read(log: DecisionLog) -> SavedDetails:
    """Read the details. Errors: LogError."""
    return SavedDetails(_errors(log), {record.name: unpack(record)["ends"] for record in log.side_records(ENDS)})


def save_errors(log: DecisionLog, errors: Mapping[str, str]) -> None:
    """Save the errors of the scan that has ended, and delete earlier ones. Unchanged errors are not written again.

    Errors of other nodes' branches stay: their own recovery, which shares the log, saves and deletes them.
    """
    nodes = log.nodes()
    before = {gid: text for gid, text in _errors(log).items() if (xid := parse(gid)) is None or xid.node in nodes}
    changed = {gid: text for gid, text in errors.items() if before.get(gid) != text}
    if changed:
        now = time.time()
        log.put_record(*(SideRecord(_ERROR, gid, pack(error=text), now) for gid, text in changed.items()))
    ended = before.keys() - errors.keys()
    if ended:
        log.delete_records(_ERROR, ended)


def save_ends(log: DecisionLog, ends: Mapping[str, Mapping[str, str]]) -> None:
    """Save how databases have ended transactions, by gtrid, and keep what is saved of other databases."""
    before = read(log).ends
    after = {gtrid: {**before.get(gtrid, {}), **found} for gtrid, found in ends.items()}
    changed = {gtrid: found for gtrid, found in after.items() if found != before.get(gtrid, {})}
    if changed:
        now = time.time()
        log.put_record(*(SideRecord(ENDS, gtrid, pack(ends=found), now) for gtrid, found in changed.items()))


def delete_ends(log: DecisionLog, gtrid: str) -> None:
    """Delete what is saved of a transaction's ends."""
    if gtrid in read(log).ends:
        log.delete_records(ENDS, [gtrid])


def seen_for(log: DecisionLog) -> dict[str, float]:
    """By gtrid: for how many seconds scans of this node's recovery have seen it in doubt. Errors: LogError."""
    now = time.time()
    return {gtrid: max(0.0, now - first) for gtrid, first in _first_seen(log).items()}


def save_seen(log: DecisionLog, seconds: Mapping[str, float]) -> None:
    """Save for how long these were seen, and delete what is saved of others. What is saved already stays as it is."""
    before, now = _first_seen(log), time.time()
    if seconds.keys() != before.keys():
        after = {gtrid: before.get(gtrid, now - seen) for gtrid, seen in seconds.items()}
        log.put_record(SideRecord(_SEEN, log.node, pack(**after), now))


def _first_seen(log: DecisionLog) -> dict[str, float]:
    found: list[dict[str, float]] = [unpack(each) for each in log.side_records(_SEEN) if each.name == log.node]
    return found[0] if found else {}


def _errors(log: DecisionLog) -> dict[str, str]:
    return {record.name: unpack(record)["error"] for record in log.side_records(_ERROR)}
