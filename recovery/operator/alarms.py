"""Alarms: conditions that a person should look at. Each is logged when it begins and when it is over.

Recovery does the same with an alarm and without.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType

from recovery.operator.listing import InDoubt
from recovery.scan.datasources.datasources import ListedBranch
from recovery.scan.report import Alarm, AlarmKind, LeftAlone
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.config.settings import RecoverySettings
from txpool.log.locations import LocationNote
from txpool.packed import MappingPacker, PackedMapping
from txpool.resources.recovery_access import PreparedSlots

logger = logging.getLogger("txpool.recovery")


_RANK = {kind.value: rank for rank, kind in enumerate(AlarmKind)}


class Alarms:
    """The alarms of one recovery manager. Used by one scan at a time; any thread may read `standing`."""

    def __init__(self, settings: RecoverySettings) -> None:
        self._in_doubt_seconds = settings.alarm_in_doubt
        self._slots_share = settings.alarm_slots
        #: By gtrid: when it was first seen in doubt (monotonic seconds). Not every database tells an age.
        self.first_seen: Mapping[str, float] = {}
        #: By gtrid, of those of the last scan to which no database tells an age: for how many seconds it was seen.
        self.seen_without_age: dict[str, float] = {}
        self._round = AlarmRound()
        #: Whether they are logged, and slots asked for. What scans for other work watches nothing.
        self.watching = True
        #: The alarms that are raised now: the most important kind first, and within a kind the oldest.
        self.standing: tuple[Alarm, ...] = ()

    def continue_from(self, former: Alarms) -> None:
        """Take over the alarms of another recovery manager, so that they are not logged again."""
        self.first_seen = former.first_seen
        self.standing = former.standing

    def begin(self) -> None:
        """Begin with a scan's result: `look_at` sees one window of it after the other."""
        self._round = AlarmRound()

    def look_at(self, snapshot: Snapshot, in_doubt: Iterable[InDoubt]) -> list[InDoubt]:
        """See what is in doubt in one window. Returns it with the ages that this process knows."""
        seen = self._round
        seen.look_at(snapshot)
        now, aged = time.monotonic(), []
        for each in in_doubt:
            first = now
            if each.unresolved and each.ours:
                first = self.first_seen.get(each.gtrid, now - snapshot.seen_for.get(each.gtrid, 0.0))
                seen.first_seen.add(each.gtrid, first)
                if not snapshot.has_age(each.gtrid):
                    seen.without_age[each.gtrid] = now - first
            age = max(each.age or 0.0, now - first)
            seen.heuristic += _heuristic(each)
            if each.unresolved and each.ours:
                seen.overdue += self._overdue(each, age, snapshot)
            aged.append(replace(each, age=age) if each.unresolved else each)
        return aged

    def end(self, snapshot: Snapshot, slots: Mapping[str, PreparedSlots], left_alone: Iterable[LeftAlone] = ()) -> None:
        """Raise and end alarms by what was seen since `begin`, and log the changes."""
        seen, self._round = self._round, AlarmRound()
        previous = {(alarm.kind, alarm.subject): alarm for alarm in self.standing}
        found = [*seen.heuristic, *seen.disputed, *seen.unknown(), *unconfigured(snapshot)]
        found += _lacking_rights(left_alone)
        found += seen.overdue
        found += [*_not_answering(snapshot.unanswered), *self._short_of_slots(slots), *seen.foreign()]
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
        self.first_seen, self.seen_without_age = seen.first_seen.packed(), seen.without_age

    def seen_for(self, saved: Mapping[str, float] = MappingProxyType({})) -> Mapping[str, float]:
        """By gtrid: for how many seconds this process has seen it in doubt, or an earlier one that has saved that."""
        now, first_seen = time.monotonic(), self.first_seen
        if isinstance(first_seen, PackedMapping) and saved.keys() <= first_seen.keys():
            return PackedMapping(first_seen.packed, lambda plain: now - plain[1])
        return {**saved, **{gtrid: now - first for gtrid, first in first_seen.items()}}

    def _overdue(self, each: InDoubt, age: float, snapshot: Snapshot) -> list[Alarm]:
        if snapshot.hangs(each.gtrid):
            text = (
                f"{each.gtrid} is still prepared, and keeps its locks: its process, incarnation {each.incarnation} "
                f"of node {each.node}, is alive and has not ended it within {snapshot.timeout(each.gtrid):g} s, "
                f"the largest timeout of its transactions. Next: {each.next}"
            )
            return [Alarm(AlarmKind.OVERDUE.value, each.gtrid, text)]
        if self._in_doubt_seconds is not None and age > self._in_doubt_seconds:
            text = (
                f"{each.gtrid} has been in doubt for longer than {self._in_doubt_seconds:g} s (alarm.in-doubt), "
                f"and its prepared branches keep their locks. Next: {each.next}"
            )
            return [Alarm(AlarmKind.OVERDUE.value, each.gtrid, text)]
        return []

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


class AlarmRound:
    """What raises alarms, as the windows of one scan show it."""

    def __init__(self) -> None:
        self.heuristic: list[Alarm] = []
        self.disputed: list[Alarm] = []
        self.overdue: list[Alarm] = []
        self.first_seen = MappingPacker[float](lambda first: (first,), itemgetter(1))
        self.without_age: dict[str, float] = {}
        #: By node, and by owner and datasource: the first branch, and how many there are.
        self._unknown: dict[str, _Some] = {}
        self._foreign: dict[tuple[str, str], _Some] = {}

    def look_at(self, snapshot: Snapshot) -> None:
        """See the transactions and branches of one window."""
        for gtrid in filter(snapshot.is_listed, snapshot.gtrids):
            if deciders := snapshot.disputed(gtrid):
                self.disputed.append(_disputed(gtrid, deciders))
            if snapshot.every_node and snapshot.coordinator_state(gtrid) is CoordinatorState.UNKNOWN:
                for branch in snapshot.listed_branches(gtrid):
                    self._unknown.setdefault(branch.named.node, _Some(branch)).count += 1
        for branch in snapshot.foreign:
            if branch.named.incarnation in snapshot.claimed_incarnations:
                self._foreign.setdefault((branch.owner or "", branch.datasource), _Some(branch)).count += 1

    def unknown(self) -> list[Alarm]:
        """With all nodes ours, branches of processes that the log does not know: one alarm for each node.

        The log may be another one than theirs, or a restored one, which knows no node. If the nodes are named, such a
        branch is in doubt as others are, and overdue in time.
        """
        return [
            Alarm(
                AlarmKind.UNKNOWN.value,
                f"node {node}",
                f"branches of node {node} keep their locks, such as {found.first} ({found.count} in all): this log "
                "does not know the processes that have prepared them, so recovery ends none of them. If the node has "
                "another log, its recovery there ends them. Only if that log is lost, end them by hand, as the other "
                "databases of each gtrid show: `txpool-recovery list`",
            )
            for node, found in self._unknown.items()
        ]

    def foreign(self) -> list[Alarm]:
        """Branches that others have prepared under names of processes that this log knows: one alarm for each role."""
        alarms = []
        for (owner, datasource), some in self._foreign.items():
            subject = f"role {owner} in {datasource}"
            names = f"{some.count} branches under names of ours, such as {some.first}"
            text = (
                f"{subject} has prepared {names}, and is none of our roles. These branches are no part of any "
                "transaction of ours, and recovery leaves them alone. If the role is ours after all, name it in "
                "prepared.owners of that datasource; otherwise see who may connect there"
            )
            if not owner:  # it is gone, or of a server that tells of none
                subject = f"somebody in {datasource}"
                text = (
                    f"{subject} has prepared {names}, and the server does not tell who. No decision names them, so "
                    "recovery leaves them alone. If nobody else can connect there, write prepared.owners = any in the "
                    "datasource's file; otherwise see who may"
                )
            alarms.append(Alarm(AlarmKind.FOREIGN.value, subject, text))
        return alarms


class _Some:
    """Some branches: the name of the first, and how many there are."""

    def __init__(self, first: ListedBranch) -> None:
        self.first = first.xid.joined
        self.count = 0


def _heuristic(each: InDoubt) -> list[Alarm]:
    if not each.heuristics:
        return []
    ends = ", ".join(f"its branch in {found.datasource} {found.end}" for found in each.heuristics)
    text = (
        f"{each.gtrid} was decided to {each.heuristics[0].decided}, but {ends}. Repair the data as "
        "`txpool-recovery show` tells, then `txpool-recovery forget`"
    )
    return [Alarm(AlarmKind.HEURISTIC.value, each.gtrid, text)]


def _disputed(gtrid: str, deciders: str) -> Alarm:
    return Alarm(
        AlarmKind.DISPUTED.value,
        gtrid,
        f"the branches of {gtrid} name different deciders ({deciders}), and the log names none, so recovery ends "
        "none of them. `txpool-recovery show` lists their owners: end the branches that are not ours in the "
        "database",
    )


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


def _not_answering(unanswered: Mapping[str, str]) -> list[Alarm]:
    return [
        Alarm(
            AlarmKind.UNREACHABLE.value,
            name,
            f"datasource {name} has not answered, and its branches stay as they are until it does: {reason}",
        )
        for name, reason in unanswered.items()
    ]
