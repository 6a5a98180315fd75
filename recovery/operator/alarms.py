"""Alarms: conditions that a person should look at. Each is logged when it begins and when it is over.

Recovery does the same with an alarm and without.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from recovery.operator.listing import InDoubt
from recovery.scan.report import Alarm, AlarmKind, LeftAlone
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.config.settings import RecoverySettings
from txpool.log.locations import LocationNote
from txpool.resources.recovery_access import PreparedSlots

logger = logging.getLogger("txpool.recovery")


_RANK = {kind.value: rank for rank, kind in enumerate(AlarmKind)}


class Alarms:
    """The alarms of one recovery manager. Used by one scan at a time; any thread may read `standing`."""

    def __init__(self, settings: RecoverySettings) -> None:
        self._in_doubt_seconds = settings.alarm_in_doubt
        self._slots_share = settings.alarm_slots
        #: By gtrid: when it was first seen in doubt (monotonic seconds). Not every database tells an age.
        self.first_seen: dict[str, float] = {}
        #: Whether they are logged, and slots asked for. What scans for other work watches nothing.
        self.watching = True
        #: The alarms that are raised now: the most important kind first, and within a kind the oldest.
        self.standing: tuple[Alarm, ...] = ()

    def continue_from(self, former: Alarms) -> None:
        """Take over the alarms of another recovery manager, so that they are not logged again."""
        self.first_seen = former.first_seen
        self.standing = former.standing

    def update(
        self,
        in_doubt: Collection[InDoubt],
        snapshot: Snapshot,
        slots: Mapping[str, PreparedSlots],
        left_alone: Iterable[LeftAlone] = (),
    ) -> None:
        """Raise and end alarms by what the current scan has found, and log the changes."""
        previous = {(alarm.kind, alarm.subject): alarm for alarm in self.standing}
        found = [*_heuristic(in_doubt), *_disputed(snapshot), *_unknown(snapshot), *unconfigured(snapshot)]
        found += _lacking_rights(left_alone)
        found += self._overdue(in_doubt, snapshot)
        found += [*_not_answering(snapshot.unanswered), *self._short_of_slots(slots), *_foreign(snapshot)]
        standing = []
        for alarm in found:
            before = previous.pop((alarm.kind, alarm.subject), None)
            standing.append(alarm if before is None else replace(alarm, since=before.since))
            # The scan that has found a heuristic outcome has logged it.
            if before is None and alarm.kind != AlarmKind.HEURISTIC.value and self.watching:
                logger.warning("alarm, %s", alarm)
        for ended in previous.values():
            logger.warning("the alarm is over, %s %s", ended.kind, ended.subject)
        self.standing = tuple(sorted(standing, key=lambda alarm: (_RANK[alarm.kind], alarm.since)))

    def age(self, each: InDoubt) -> float:
        """For how many seconds it has been in doubt: by its databases, or since this process first saw it."""
        return self._age_at(time.monotonic(), each)

    def _age_at(self, now: float, each: InDoubt) -> float:
        return max(each.age or 0.0, now - self.first_seen.get(each.gtrid, now))

    def seen_for(self) -> dict[str, float]:
        """By gtrid: for how many seconds this process has seen it in doubt, or an earlier one before it."""
        now = time.monotonic()
        return {gtrid: now - first for gtrid, first in self.first_seen.items()}

    def _overdue(self, in_doubt: Iterable[InDoubt], snapshot: Snapshot) -> list[Alarm]:
        now = time.monotonic()
        unresolved = [each for each in in_doubt if each.unresolved and each.ours]
        began = {gtrid: now - seconds for gtrid, seconds in snapshot.seen_for.items()}
        self.first_seen = {
            each.gtrid: self.first_seen.get(each.gtrid, began.get(each.gtrid, now)) for each in unresolved
        }
        found = []
        for each in unresolved:
            if snapshot.hangs(each.gtrid):
                text = (
                    f"{each.gtrid} is still prepared, and keeps its locks: its process, incarnation {each.incarnation} "
                    f"of node {each.node}, is alive and has not ended it within {snapshot.timeout(each.gtrid):g} s, "
                    f"the largest timeout of its transactions. Next: {each.next}"
                )
                found.append(Alarm(AlarmKind.OVERDUE.value, each.gtrid, text))
            elif self._in_doubt_seconds is not None and self._age_at(now, each) > self._in_doubt_seconds:
                text = (
                    f"{each.gtrid} has been in doubt for longer than {self._in_doubt_seconds:g} s (alarm.in-doubt), "
                    f"and its prepared branches keep their locks. Next: {each.next}"
                )
                found.append(Alarm(AlarmKind.OVERDUE.value, each.gtrid, text))
        return found

    def _short_of_slots(self, slots: Mapping[str, PreparedSlots]) -> list[Alarm]:
        return [
            Alarm(
                AlarmKind.SLOTS.value,
                name,
                f"the server of {name} can hold {each.maximum} prepared transactions, and holds {each.taken} "
                f"(alarm.slots = {self._slots_share:g}). With none free, transactions that prepare there roll back. "
                "End those in doubt, or raise max_prepared_transactions and restart the server",
            )
            for name, each in slots.items()
            if self._slots_share is not None and each.taken >= self._slots_share * each.maximum
        ]


def _heuristic(in_doubt: Iterable[InDoubt]) -> list[Alarm]:
    alarms = []
    for each in in_doubt:
        if each.heuristics:
            ends = ", ".join(f"its branch in {found.datasource} {found.end}" for found in each.heuristics)
            text = (
                f"{each.gtrid} was decided to {each.heuristics[0].decided}, but {ends}. Repair the data as "
                "`txpool-recovery show` tells, then `txpool-recovery forget`"
            )
            alarms.append(Alarm(AlarmKind.HEURISTIC.value, each.gtrid, text))
    return alarms


def _disputed(snapshot: Snapshot) -> list[Alarm]:
    named = {gtrid: snapshot.disputed(gtrid) for gtrid in filter(snapshot.is_listed, snapshot.gtrids)}
    return [
        Alarm(
            AlarmKind.DISPUTED.value,
            gtrid,
            f"the branches of {gtrid} name different deciders ({deciders}), and the log names none, so recovery ends "
            "none of them. `txpool-recovery show` lists their owners: end the branches that are not ours in the "
            "database",
        )
        for gtrid, deciders in named.items()
        if deciders
    ]


def _unknown(snapshot: Snapshot) -> list[Alarm]:
    """With all nodes ours, branches of processes that the log does not know: one alarm for each node.

    The log may be another one than theirs, or a restored one, which knows no node. If the nodes are named, such a
    branch is in doubt as others are, and overdue in time.
    """
    found: dict[str, list[str]] = {}
    if not snapshot.every_node:
        return []
    for gtrid in filter(snapshot.is_listed, snapshot.gtrids):
        if snapshot.coordinator_state(gtrid) is CoordinatorState.UNKNOWN:
            branches = snapshot.listed_branches(gtrid)
            found.setdefault(branches[0].named.node, []).extend(branch.xid.joined for branch in branches)
    return [
        Alarm(
            AlarmKind.UNKNOWN.value,
            f"node {node}",
            f"branches of node {node} keep their locks, such as {gids[0]} ({len(gids)} in all): this log does not "
            "know the processes that have prepared them, so recovery ends none of them. If the node has "
            "another log, its recovery there ends them. Only if that log is lost, end them by hand, as the other "
            "databases of each gtrid show: `txpool-recovery list`",
        )
        for node, gids in found.items()
    ]


def unconfigured(snapshot: Snapshot) -> list[Alarm]:
    """Databases in which our nodes prepare and that the configuration does not name: one alarm for each name."""
    counts = Counter((branch.identity, branch.database) for branch in snapshot.elsewhere)
    texts: dict[str, list[str]] = {}  # two nodes may have given different databases one name
    for note, file in snapshot.unconfigured.items():
        texts.setdefault(note.location.datasource, []).append(
            f"{_describe_note(note)}, which this configuration does not name. Recovery has opened the file that the "
            f"log has noted for it, {file}, and recovers the branches there. Add that file to `datasources`"
        )
    # One text for each node and database, even if the node prepares there as several roles.
    unreached = {_describe_note(note): (note, why) for note, why in snapshot.unreached.items()}
    for note, why in unreached.values():
        count = next((counts.pop(database) for database in list(counts) if database[0] == note.location.identity), 0)
        number = f" ({count})" if count else ""
        texts.setdefault(note.location.datasource, []).append(
            f"{_describe_note(note)}, which this configuration does not lead to: {why}. Branches prepared "
            f"there{number} keep their locks. Add the datasource's file to `datasources`; or, once nothing of ours can "
            f"be prepared there any more, run `txpool-recovery forget --datasource {note.location.datasource}`"
        )
    for (identity, database), count in counts.items():
        texts.setdefault(database, []).append(
            f"{count} branches of our nodes are prepared in database {database} ({identity}), which no datasource of "
            "this configuration leads to. They keep their locks: add the datasource's file to `datasources`"
        )
    return [Alarm(AlarmKind.UNCONFIGURED.value, subject, "; ".join(found)) for subject, found in texts.items()]


def _lacking_rights(left_alone: Iterable[LeftAlone]) -> list[Alarm]:
    """Branches that recovery's user has no right to end: one alarm for each datasource."""
    found: dict[str, list[LeftAlone]] = {}
    for each in left_alone:
        if each.lacks_right:
            found.setdefault(each.datasource, []).append(each)
    return [
        Alarm(
            AlarmKind.RIGHT.value,
            name,
            f"recovery lacks a right in datasource {name}, and cannot end {lefts[0].gid} ({len(lefts)} branches in "
            f"all): {lefts[0].error}. They stay as they are. Give the user that right, and the next scan ends them",
        )
        for name, lefts in found.items()
    ]


def _describe_note(note: LocationNote) -> str:
    identity = note.location.identity or "identity unknown"
    return f"node {note.node} prepares in datasource {note.location.datasource} ({identity})"


def _foreign(snapshot: Snapshot) -> list[Alarm]:
    """Branches that others have prepared under names of processes that this log knows: one alarm for each role."""
    found: dict[str, list[str]] = {}
    for branch in snapshot.foreign:
        if branch.named.incarnation in snapshot.claimed_incarnations:
            owner = f"role {branch.owner}" if branch.owner else "a role that is gone"
            found.setdefault(f"{owner} in {branch.datasource}", []).append(branch.xid.joined)
    return [
        Alarm(
            AlarmKind.FOREIGN.value,
            subject,
            f"{subject} has prepared {len(gids)} branches under names of ours, such as {gids[0]}, and is none of our "
            "roles. These branches are no part of any transaction of ours, and recovery leaves them alone. If the role "
            "is ours after all, name it in prepared.owners of that datasource; otherwise see who may connect there",
        )
        for subject, gids in found.items()
    ]


def _not_answering(unanswered: Mapping[str, str]) -> list[Alarm]:
    return [
        Alarm(
            AlarmKind.UNREACHABLE.value,
            name,
            f"datasource {name} has not answered, and its branches stay as they are until it does: {reason}",
        )
        for name, reason in unanswered.items()
    ]
