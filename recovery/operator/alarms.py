"""Alarms: what stands for longer than it should, and wants a person. Each is news when it comes, and when it goes.

Nothing is inferred from an alarm: recovery does the same with it and without.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from recovery.operator.listing import InDoubt
from recovery.scan.report import Alarm, AlarmKind
from recovery.scan.snapshot import Snapshot
from txpool.config.settings import RecoverySettings
from txpool.log.locations import LocationNote
from txpool.resources.base import PreparedSlots

logger = logging.getLogger("txpool.recovery")


_RANK = {kind.value: rank for rank, kind in enumerate(AlarmKind)}


class Alarms:
    """The alarms of one recovery manager. Used by one scan at a time; `standing` may be read from any thread."""

    def __init__(self, settings: RecoverySettings) -> None:
        self._in_doubt_seconds = settings.alarm_in_doubt
        self._slots_share = settings.alarm_slots
        #: When this process has first seen what is in doubt: not every database tells an age.
        self.first_seen: dict[str, float] = {}
        #: The most important kind first, and of each the oldest.
        self.standing: tuple[Alarm, ...] = ()

    def continue_from(self, former: Alarms) -> None:
        """Go on with what another has raised."""
        self.first_seen = former.first_seen
        self.standing = former.standing

    def update(self, in_doubt: Collection[InDoubt], snapshot: Snapshot, slots: Mapping[str, PreparedSlots]) -> None:
        """Raise, keep and end alarms, as the scan that ends now has found things; what is news is logged."""
        known = {(alarm.kind, alarm.subject): alarm for alarm in self.standing}
        found = [*_heuristic(in_doubt), *_disputed(snapshot), *unconfigured(snapshot), *self._overdue(in_doubt)]
        found += [*_not_answering(snapshot.unanswered), *self._short_of_slots(slots), *_foreign(snapshot)]
        after = []
        for alarm in found:
            before = known.pop((alarm.kind, alarm.subject), None)
            after.append(alarm if before is None else replace(alarm, since=before.since))
            if before is None and alarm.kind != AlarmKind.HEURISTIC.value:  # the scan that found it has said so
                logger.warning("alarm, %s", alarm)
        for ended in known.values():
            logger.warning("the alarm is over, %s %s", ended.kind, ended.subject)
        self.standing = tuple(sorted(after, key=lambda alarm: (_RANK[alarm.kind], alarm.since)))

    def age(self, each: InDoubt) -> float:
        """For how long it is in doubt: as its databases tell, or since this process has first seen it."""
        return max(each.age or 0.0, time.monotonic() - self.first_seen.get(each.gtrid, time.monotonic()))

    def _overdue(self, in_doubt: Iterable[InDoubt]) -> list[Alarm]:
        now = time.monotonic()
        unresolved = [each for each in in_doubt if each.unresolved and each.ours]
        self.first_seen = {each.gtrid: self.first_seen.get(each.gtrid, now) for each in unresolved}
        found = []
        for each in unresolved:
            age = self.age(each)
            if self._in_doubt_seconds is not None and age > self._in_doubt_seconds:
                text = (
                    f"{each.gtrid} is in doubt for longer than {self._in_doubt_seconds:g} s (alarm.in-doubt), and what it has "
                    f"prepared keeps its locks. Next: {each.next}"
                )
                found.append(Alarm(AlarmKind.OVERDUE.value, each.gtrid, text))
        return found

    def _short_of_slots(self, slots: Mapping[str, PreparedSlots]) -> list[Alarm]:
        return [
            Alarm(
                AlarmKind.SLOTS.value,
                name,
                f"of the {each.maximum} prepared transactions that the server of {name} can hold, {each.taken} are "
                f"taken (alarm.slots = {self._slots_share:g}); with none left, what prepares there rolls back. End what is "
                "in doubt, or raise max_prepared_transactions and restart the server",
            )
            for name, each in slots.items()
            if self._slots_share is not None and each.taken >= self._slots_share * each.maximum
        ]


def _heuristic(in_doubt: Iterable[InDoubt]) -> list[Alarm]:
    found = []
    for each in in_doubt:
        if each.heuristics:
            otherwise = ", ".join(f"{it.datasource} has ended {it.ended}" for it in each.heuristics)
            text = (
                f"{each.gtrid} was decided to {each.heuristics[0].decided}, and {otherwise}. Repair the data as "
                "`txpool-recovery show` tells, then `txpool-recovery forget`"
            )
            found.append(Alarm(AlarmKind.HEURISTIC.value, each.gtrid, text))
    return found


def _disputed(snapshot: Snapshot) -> list[Alarm]:
    named = {gtrid: snapshot.disputed(gtrid) for gtrid in filter(snapshot.is_listed, snapshot.gtrids)}
    return [
        Alarm(
            AlarmKind.DISPUTED.value,
            gtrid,
            f"the branches of {gtrid} name different deciders ({deciders}), and the log says neither, so nothing of it "
            "is ended. See whose they are by `txpool-recovery show`, and end in the database what is not ours",
        )
        for gtrid, deciders in named.items()
        if deciders
    ]


def unconfigured(snapshot: Snapshot) -> list[Alarm]:
    """Databases in which nodes of ours prepare, and that the configuration does not lead to."""
    held = Counter((branch.identity, branch.database) for branch in snapshot.elsewhere)
    texts: dict[str, list[str]] = {}  # two nodes may call different databases the same
    for note, file in snapshot.unconfigured.items():
        texts.setdefault(note.location.datasource, []).append(
            f"{_describe_note(note)}, which this configuration does not name: its file {file} was opened as the log has "
            "noted it, and what is there is recovered. Add that file to `datasources`"
        )
    # Whatever roles it prepares as there: a database is told once for each node.
    unreached = {_describe_note(note): (note, why) for note, why in snapshot.unreached.items()}
    for note, why in unreached.values():
        count = next((held.pop(place) for place in list(held) if place[0] == note.location.identity), 0)
        there = f" ({count} branches are)" if count else ""
        texts.setdefault(note.location.datasource, []).append(
            f"{_describe_note(note)}, which this configuration does not lead to: {why}. What is prepared there{there} keeps "
            "its locks: add its file to `datasources`; or, once nothing of ours can be there any more, "
            f"`txpool-recovery forget --datasource {note.location.datasource}`"
        )
    for (identity, database), count in held.items():
        texts.setdefault(database, []).append(
            f"{count} branches of our nodes are prepared in database {database} ({identity}), which no datasource of "
            "this configuration leads to, and keep their locks: name its file in `datasources`"
        )
    return [Alarm(AlarmKind.UNCONFIGURED.value, subject, "; ".join(found)) for subject, found in texts.items()]


def _describe_note(note: LocationNote) -> str:
    identity = note.location.identity or "whose identity was not told"
    return f"node {note.node} prepares in datasource {note.location.datasource} ({identity})"


def _foreign(snapshot: Snapshot) -> list[Alarm]:
    """What others have prepared under the names of processes that this log knows: one alarm for each such role."""
    found: dict[str, list[str]] = {}
    for branch in snapshot.foreign:
        if branch.xid.incarnation in snapshot.claimed_incarnations:
            owner = f"role {branch.owner}" if branch.owner else "a role that is gone"
            found.setdefault(f"{owner} in {branch.datasource}", []).append(branch.xid.joined)
    return [
        Alarm(
            AlarmKind.FOREIGN.value,
            subject,
            f"{len(gids)} branches under names of ours, such as {gids[0]}, were prepared by {subject}, which is none "
            "of ours: they are no part of any transaction of ours, change none, and are left alone. Where it is ours "
            "after all, name it in prepared.owners of that datasource; otherwise see who may connect there",
        )
        for subject, gids in found.items()
    ]


def _not_answering(silent: Mapping[str, str]) -> list[Alarm]:
    return [
        Alarm(
            AlarmKind.UNREACHABLE.value,
            name,
            f"datasource {name} has not answered, and what it holds stays as it is until it does: {reason}",
        )
        for name, reason in silent.items()
    ]
