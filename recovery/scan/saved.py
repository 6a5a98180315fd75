"""What recovery keeps in the log for people: why a branch could not be ended, and how databases ended that differ.

Nothing is inferred from it. `list` and `show` run in processes of their own, and tell by it what the daemon has met.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from txpool.log.base import ENDS, DecisionLog, SideRecord
from txpool.log.formats import pack, unpack
from txpool.xid import parse

_ERROR = "branch error"


@dataclass(frozen=True, slots=True)
class SavedDetails:
    """As the log has it."""

    #: By a branch's gid: what came in place of an answer, when it was last told to end.
    errors: Mapping[str, str] = field(default_factory=dict)
    #: By gtrid and datasource: committed, rolled back, unknown or lost.
    ends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read(log: DecisionLog) -> SavedDetails:
    """LogError."""
    return SavedDetails(_errors(log), {memo.name: unpack(memo)["ends"] for memo in log.side_records(ENDS)})


def save_errors(log: DecisionLog, errors: Mapping[str, str]) -> None:
    """Keep those of the scan that has ended, in the place of the former ones; what is the same is not written.

    Those of other nodes, whose recovery shares the log, are theirs to keep.
    """
    nodes = log.nodes()
    before = {gid: text for gid, text in _errors(log).items() if (xid := parse(gid)) is None or xid.node in nodes}
    for gid, text in errors.items():
        if before.get(gid) != text:
            log.put_record(SideRecord(_ERROR, gid, pack(error=text), time.time()))
    gone = before.keys() - errors.keys()
    if gone:
        log.delete_records(_ERROR, gone)


def save_ends(log: DecisionLog, gtrid: str, ends: Mapping[str, str]) -> None:
    """Keep how each database has ended a transaction, with what is known of others."""
    before: Mapping[str, str] = read(log).ends.get(gtrid, {})
    after = {**before, **ends}
    if after != before:
        log.put_record(SideRecord(ENDS, gtrid, pack(ends=after), time.time()))


def delete_ends(log: DecisionLog, gtrid: str) -> None:
    """Drop them, where there are any: the heuristic outcome is dismissed."""
    if gtrid in read(log).ends:
        log.delete_records(ENDS, [gtrid])


def _errors(log: DecisionLog) -> dict[str, str]:
    return {memo.name: unpack(memo)["error"] for memo in log.side_records(_ERROR)}
