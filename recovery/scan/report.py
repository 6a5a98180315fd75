"""What a scan has done, and what it says about it."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from txpool.config.secrets import redact_url
from txpool.log.base import Heuristic
from txpool.xid import parse

logger = logging.getLogger("txpool.recovery")


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that this scan has brought to its end."""

    gid: str
    datasource: str
    why: str


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A branch, or where `gid` is empty a whole transaction, that this scan has not touched, and why."""

    gtrid: str
    gid: str
    datasource: str
    reason: str
    #: True where it will not end by itself, so that somebody should look.
    alarm: bool = True
    #: What came in place of an answer; empty where nothing was asked.
    error: str = ""


class AlarmKind(Enum):
    """What an alarm is about."""

    # The most important first.
    HEURISTIC = "heuristic"  #: a branch has ended otherwise than its transaction was decided
    DISPUTED = "disputed"  #: branches of a transaction name different deciders
    UNCONFIGURED = "unconfigured"  #: a node of ours prepares in a database that the configuration does not lead to
    OVERDUE = "overdue"  #: a transaction is in doubt for longer than alarm.in-doubt
    UNREACHABLE = "unreachable"  #: a datasource does not answer
    SLOTS = "slots"  #: a server's slots for prepared transactions run short, by alarm.slots
    FOREIGN = "foreign"  #: somebody else has prepared under the name of a process of ours


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that stands for longer than it should: `since` is wall-clock seconds, for people only."""

    #: An AlarmKind's value.
    kind: str
    #: A gtrid, or a datasource.
    subject: str
    text: str
    since: float = field(default_factory=time.time)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What one scan has done. Immutable."""

    committed: tuple[Ended, ...] = ()
    rolled_back: tuple[Ended, ...] = ()
    #: What the last pass has left alone.
    left_alone: tuple[LeftAlone, ...] = ()
    #: The datasources that did not answer, and what came instead of an answer.
    unreachable: dict[str, str] = field(default_factory=dict)
    #: The heuristic outcomes that this scan has found.
    heuristics: tuple[Heuristic, ...] = ()
    #: The gtrids of which nothing is kept any more: decisions, rows, tombstones, marks, abort records.
    forgotten: tuple[str, ...] = ()
    #: What failed, by the step that failed; the other steps went on.
    errors: dict[str, str] = field(default_factory=dict)
    #: What was moved out of sight, as its kind and its name.
    expired: tuple[str, ...] = ()
    #: Where recovery is suspended, since when, by whom and why: what was left to do of this scan was not done.
    suspended: str = ""
    #: What stands for longer than it should.
    alarms: tuple[Alarm, ...] = ()

    @property
    def pending(self) -> tuple[LeftAlone, ...]:
        """What was left alone and will not end by itself."""
        return tuple(left for left in self.left_alone if left.alarm)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        counts = {
            "committed": self.committed,
            "rolled back": self.rolled_back,
            "left alone": self.left_alone,
            "forgotten": self.forgotten,
            "heuristic": self.heuristics,
            "expired": self.expired,
        }
        said = ", ".join(f"{len(found)} {name}" for name, found in counts.items() if found) or "nothing to do"
        silent = f"; no answer from {', '.join(self.unreachable)}" if self.unreachable else ""
        failed = f"; failed: {', '.join(self.errors)}" if self.errors else ""
        suspended = f"; {self.suspended}" if self.suspended else ""
        return f"{said}{silent}{failed}{suspended}"


class RepeatFilter:
    """Says what is new: a warning that the scan before has given too is not given again. Used by one scan at a time."""

    def __init__(self) -> None:
        self._before: set[str] = set()
        self._now: set[str] = set()

    def warn(self, text: str) -> None:
        """Log it, unless this scan or the one before has said the same."""
        if text not in self._before and text not in self._now:
            logger.warning("%s", text)
        self._now.add(text)

    def end_scan(self) -> None:
        """A scan has ended: what it did not say again would be news."""
        self._before, self._now = self._now, set()


def _log_fields(ended: Ended) -> dict[str, str]:
    """What its log record has beside the words."""
    xid = parse(ended.gid)
    return {"gtrid": "" if xid is None else xid.gtrid}


class ScanRecorder:
    """Where the passes of one scan write down what they do."""

    def __init__(self, repeats: RepeatFilter) -> None:
        self._repeats = repeats
        self.committed: list[Ended] = []
        self.rolled_back: list[Ended] = []
        self.left_alone: dict[tuple[str, str, str], LeftAlone] = {}
        self.unreachable: dict[str, str] = {}
        self.heuristics: list[Heuristic] = []
        self.forgotten: list[str] = []
        self.errors: dict[str, str] = {}
        self.expired: list[str] = []
        self.suspended = ""

    def begin_pass(self) -> None:
        """What is left alone, and what cannot be reached, is the last pass's word."""
        self.left_alone.clear()
        self.unreachable.clear()

    def record_commit(self, ended: Ended) -> None:
        self.committed.append(ended)
        logger.info("committed %s in %s (%s)", ended.gid, ended.datasource, ended.why, extra=_log_fields(ended))

    def record_rollback(self, ended: Ended) -> None:
        self.rolled_back.append(ended)
        logger.info("rolled back %s in %s (%s)", ended.gid, ended.datasource, ended.why, extra=_log_fields(ended))

    def record_left_alone(self, left: LeftAlone) -> None:
        self.left_alone[left.gtrid, left.gid, left.datasource] = left
        if left.alarm:
            place = f" in {left.datasource}" if left.datasource else ""
            self._repeats.warn(f"left {left.gid or left.gtrid}{place} alone: {left.reason}")

    def record_unanswered(self, datasource: str, reason: str) -> None:
        self.unreachable[datasource] = reason

    def record_heuristic(self, found: Heuristic) -> None:
        self.heuristics.append(found)
        self._repeats.warn(
            f"heuristic outcome: {found.gtrid} was decided to {found.decided}, and its branch {found.bqual} in "
            f"{found.datasource} has ended {found.ended}. The record is kept: see `txpool-recovery show`, repair by "
            "hand, then `txpool-recovery forget`"
        )

    def record_forgotten(self, gtrids: list[str]) -> None:
        self.forgotten.extend(gtrids)
        for gtrid in gtrids:
            logger.info("forgot %s: every branch has answered", gtrid, extra={"gtrid": gtrid})

    def record_expired(self, entries: list[str]) -> None:
        self.expired.extend(entries)
        logger.info("expired: %s", ", ".join(entries))

    def record_suspension(self, reason: str) -> None:
        self.suspended = reason
        self._repeats.warn(f"{reason}, and nothing is done until `txpool-recovery resume`")

    def record_failure(self, step: str, text: str) -> None:
        self.errors[step] = text
        self._repeats.warn(f"{step} failed, the rest goes on: {text}")

    def report(self) -> ScanReport:
        return ScanReport(
            tuple(self.committed),
            tuple(self.rolled_back),
            tuple(self.left_alone.values()),
            dict(self.unreachable),
            tuple(self.heuristics),
            tuple(self.forgotten),
            dict(self.errors),
            tuple(self.expired),
            self.suspended,
        )


def describe_error(error: BaseException) -> str:
    """An error in one line, without a password that a driver may have put into it."""
    return " ".join(redact_url(f"{type(error).__name__}: {error}").split())
