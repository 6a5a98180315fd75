"""Recovery suspended by a person: a flag in the decision log, which lasts, and which every recoverer of the node sees.

What runs already ends: a scan looks before each of its passes. What a person does by hand is not suspended.
It is kept without a number of its format, since the version of before the notes reads no other keys.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from datetime import datetime

from recovery.operator.audit import audited, current_user
from txpool.log.base import DecisionLog, SideRecord
from txpool.log.formats import unpack

_KIND = "suspended"


@dataclass(frozen=True, slots=True)
class Suspension:
    """Since when (wall-clock seconds), by whom and why the recovery of a node, or of some, does nothing."""

    node: str
    since: float
    who: str
    reason: str

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.since).astimezone().isoformat(" ", "seconds")
        why = self.reason or "no reason was given"
        return f"the recovery of node {self.node} is suspended since {when} by {self.who} ({why})"


def suspension(log: DecisionLog) -> Suspension | None:
    """The suspension of one of the nodes that are ours to recover, or None. LogError."""
    nodes = log.nodes()
    return next((Suspension(**unpack(memo)) for memo in log.side_records(_KIND) if memo.name in nodes), None)


def suspend(log: DecisionLog, reason: str = "") -> Suspension:
    """Suspend the recovery of our nodes, durably; one that is suspended already stays as it was. LogError."""
    with audited(log, "suspend", "", reason):
        found = suspension(log)
        nodes = log.nodes() - {memo.name for memo in log.side_records(_KIND)}
        fresh = Suspension(", ".join(sorted(nodes)), time.time(), current_user(), reason)
        for node in nodes:
            log.put_record(SideRecord(_KIND, node, json.dumps(asdict(fresh)), fresh.since))
        return found or fresh


def resume(log: DecisionLog, reason: str = "") -> bool:
    """Let it go on; whether it was suspended. LogError."""
    with audited(log, "resume", "", reason):
        found = suspension(log) is not None
        log.delete_records(_KIND, log.nodes())
        return found
