"""The report of a scan: the recorder that fills it in, its parts, and the log messages that go with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from operator import itemgetter
from typing import Any

from txpool.log.base import Heuristic
from txpool.packed import Packer, Plain
from txpool.xid import parse, text_of

logger = logging.getLogger("txpool.recovery")


@dataclass(frozen=True, slots=True)
class Ended:
    """A branch that this scan has committed or rolled back."""

    gid: str
    datasource: str
    why: str

    @property
    def gtrid(self) -> str:
        """The transaction's."""
        return ":".join(self.gid.split(":", 4)[:4])


def _pack_ended(ended: Ended) -> Plain:
    return ended.gtrid, ended.gid, ended.datasource, ended.why


def _unpack_ended(plain: Plain) -> Ended:
    return Ended(*plain[1:])


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A branch that this scan has left alone, and why; if `gid` is empty, a whole transaction."""

    gtrid: str
    gid: str
    datasource: str
    reason: str
    #: True if it will not end without a person's help.
    alarm: bool = True
    #: The database's error, if recovery tried to end the branch and got no answer; else empty.
    error: str = ""
    #: True if recovery's user lacks the right to end it.
    lacks_right: bool = False


def _packer_of_left() -> Packer[LeftAlone]:
    return Packer(_pack_left, _unpack_left)


def _pack_left(left: LeftAlone) -> Plain:
    where = left.gtrid, left.gid, left.datasource
    return *where, text_of(left.reason), left.alarm, str(left.error), left.lacks_right


def _unpack_left(plain: Plain) -> LeftAlone:
    return LeftAlone(*plain)


class AlarmKind(Enum):
    """What an alarm is about. The most important kind comes first."""

    HEURISTIC = "heuristic"  #: a branch has ended otherwise than its transaction was decided
    DISPUTED = "disputed"  #: the branches of a transaction name different deciders
    UNKNOWN = "unknown"  #: all nodes are ours, and processes that the log does not know have prepared branches
    UNCONFIGURED = "unconfigured"  #: a node of ours prepares in a database that is not configured
    RIGHT = "right"  #: recovery's user lacks a right that it needs to end a branch
    OVERDUE = "overdue"  #: a transaction has been in doubt for longer than alarm.in-doubt, or than its process may take
    UNREACHABLE = "unreachable"  #: a datasource does not answer
    SLOTS = "slots"  #: a server has few prepared slots left, by alarm.slots
    FOREIGN = "foreign"  #: somebody else has prepared under the name of a process of ours


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that a person should look at. `since` is wall-clock seconds, for people only."""

    #: An AlarmKind's value.
    kind: str
    #: A gtrid or a datasource.
    subject: str
    text: str
    since: float = field(default_factory=time.time)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What one scan has done. Immutable. Its sequences are tuples; of very many, they are packed by gtrids
    (`txpool.packed`).
    """

    committed: Sequence[Ended] = ()
    rolled_back: Sequence[Ended] = ()
    #: The branches and transactions that the last pass has left alone.
    left_alone: Sequence[LeftAlone] = ()
    #: The datasources that did not answer the last pass, with their errors.
    unreachable: dict[str, str] = field(default_factory=dict)
    #: The heuristic outcomes that this scan has found.
    heuristics: tuple[Heuristic, ...] = ()
    #: The gtrids whose records were deleted: decisions, rows, tombstones, finished marks, abort records.
    forgotten: Sequence[str] = ()
    #: The errors by the step that failed. The other steps went on.
    errors: dict[str, str] = field(default_factory=dict)
    #: The entries that have expired, as kind and name.
    expired: tuple[str, ...] = ()
    #: If recovery is suspended: since when, by whom and why. The rest of this scan was not done then.
    suspended: str = ""
    #: The alarms after this scan.
    alarms: tuple[Alarm, ...] = ()

    @property
    def pending(self) -> Sequence[LeftAlone]:
        """What was left alone and will not end without a person's help."""
        found = _packer_of_left()
        found.extend(left for left in self.left_alone if left.alarm)
        return found.packed()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain = replace(
            self,
            committed=tuple(self.committed),
            rolled_back=tuple(self.rolled_back),
            left_alone=tuple(self.left_alone),
            forgotten=tuple(self.forgotten),
        )
        return asdict(plain)

    def __str__(self) -> str:
        counts = {
            "committed": self.committed,
            "rolled back": self.rolled_back,
            "left alone": self.left_alone,
            "forgotten": self.forgotten,
            "heuristic": self.heuristics,
            "expired": self.expired,
        }
        done = ", ".join(f"{len(found)} {name}" for name, found in counts.items() if found) or "nothing to do"
        unanswered = f"; no answer from {', '.join(self.unreachable)}" if self.unreachable else ""
        failed = f"; failed: {', '.join(self.errors)}" if self.errors else ""
        suspended = f"; {self.suspended}" if self.suspended else ""
        return f"{done}{unanswered}{failed}{suspended}"


class RepeatFilter:
    """Logs a warning only if the previous scan has not logged it too. Used by one scan at a time."""

    def __init__(self) -> None:
        #: The hashes of texts: there may be very many.
        self._before: set[int] = set()
        self._now: set[int] = set()

    def warn(self, text: str) -> None:
        """Log the text, unless this scan or the previous one has logged it already."""
        known = hash(text)
        if known not in self._before and known not in self._now:
            logger.warning("%s", text)
        self._now.add(known)

    def end_scan(self) -> None:
        """End a scan: a warning that it did not repeat will be logged again."""
        self._before, self._now = self._now, set()


def _log(what: str, ended: Ended) -> None:
    if logger.isEnabledFor(logging.INFO):
        xid = parse(ended.gid)
        fields = {"gtrid": "" if xid is None else xid.gtrid}
        logger.info("%s %s in %s (%s)", what, ended.gid, ended.datasource, ended.why, extra=fields)


class ScanRecorder:
    """Collects what the passes of one scan do, and logs it."""

    def __init__(self, repeats: RepeatFilter) -> None:
        self._repeats = repeats
        self.committed = Packer(_pack_ended, _unpack_ended)
        self.rolled_back = Packer(_pack_ended, _unpack_ended)
        self._left_alone = _packer_of_left()
        #: Those of the current window.
        self._left_now: dict[tuple[str, str, str], LeftAlone] = {}
        self.unreachable: dict[str, str] = {}
        self.heuristics: list[Heuristic] = []
        self.forgotten = Packer[str](lambda gtrid: (gtrid,), itemgetter(0))
        self.errors: dict[str, str] = {}
        self.expired: list[str] = []
        self.suspended = ""

    def begin_pass(self) -> None:
        """Drop what the previous pass has left alone or could not reach: the last pass counts."""
        self._left_alone = _packer_of_left()
        self._left_now.clear()
        self.unreachable.clear()

    def end_window(self) -> None:
        """Nothing more is recorded of the transactions that were left alone so far."""
        self._left_alone.extend(self._left_now.values())
        self._left_now.clear()

    def record_commit(self, ended: Ended) -> None:
        self.committed.add(ended)
        _log("committed", ended)

    def record_rollback(self, ended: Ended) -> None:
        self.rolled_back.add(ended)
        _log("rolled back", ended)

    def record_left_alone(self, left: LeftAlone) -> None:
        self._left_now[left.gtrid, left.gid, left.datasource] = left
        if left.alarm:
            where = f" in {left.datasource}" if left.datasource else ""
            self._repeats.warn(f"left {left.gid or left.gtrid}{where} alone: {left.reason}")

    def record_unanswered(self, datasource: str, reason: str) -> None:
        self.unreachable[datasource] = reason

    def record_heuristic(self, found: Heuristic) -> None:
        self.heuristics.append(found)
        branch = f"its branch {found.bqual} in {found.datasource} {found.end}"
        if not found.bqual:
            branch = f"its last resource {found.datasource} may have committed before that: nothing shows it"
        self._repeats.warn(
            f"heuristic outcome: {found.gtrid} was decided to {found.decided}, but {branch}. The record is kept: see "
            "`txpool-recovery show`, repair the data, then `txpool-recovery forget`"
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
        self._repeats.warn(f"{reason}. Recovery does nothing until `txpool-recovery resume`")

    def record_failure(self, step: str, text: str) -> None:
        self.errors[step] = text
        self._repeats.warn(f"{step} failed, and the other steps go on: {text}")

    def report(self) -> ScanReport:
        self.end_window()
        return ScanReport(
            self.committed.packed(),
            self.rolled_back.packed(),
            self._left_alone.packed(),
            dict(self.unreachable),
            tuple(self.heuristics),
            self.forgotten.packed(),
            dict(self.errors),
            tuple(self.expired),
            self.suspended,
        )
