"""Suspension of recovery by a person: a durable flag in the decision log, for every recovery manager of the node.

A scan reads the flag before each pass, so a pass that runs already is finished. Commands by hand are not suspended.
The flag is stored without a format number, since versions before the location notes read no other keys.
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
    """Since when (wall-clock seconds), by whom and why the recovery of one or several nodes is suspended."""

    node: str
    since: float
    who: str
    reason: str

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.since).astimezone().isoformat(" ", "seconds")
        why = self.reason or "no reason was given"
        return f"the recovery of node {self.node} is suspended since {when} by {self.who} ({why})"


def suspension(log: DecisionLog) -> Suspension | None:
    """The suspension of one of the nodes that are ours to recover; None if none is suspended. Errors: LogError."""
    nodes = log.nodes()
    return next((Suspension(**unpack(record)) for record in log.side_records(_KIND) if record.name in nodes), None)


def suspend(log: DecisionLog, reason: str = "") -> Suspension:
    """Suspend the recovery of our nodes durably. An existing suspension stays as it is. Errors: LogError."""
    with audited(log, "suspend", "", reason):
        found = suspension(log)
        nodes = log.nodes() - {record.name for record in log.side_records(_KIND)}
        new = Suspension(", ".join(sorted(nodes)), time.time(), current_user(), reason)
        for node in nodes:
            log.put_record(SideRecord(_KIND, node, json.dumps(asdict(new)), new.since))
        return found or new


def resume(log: DecisionLog, reason: str = "") -> bool:
    """End the suspension of our nodes. Returns whether there was one. Errors: LogError."""
    with audited(log, "resume", "", reason):
        found = suspension(log) is not None
        log.delete_records(_KIND, log.nodes())
        return found
