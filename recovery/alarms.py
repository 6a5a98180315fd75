"""Alarms: what stands for longer than it should, and wants a person. Each is news when it comes, and when it goes.

Nothing is inferred from an alarm: recovery does the same with it and without.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from recovery.listing import InDoubt
from recovery.report import Alarm, AlarmKind
from txpool.resources.base import Slots
from txpool.settings import RecoverySettings

logger = logging.getLogger("txpool.recovery")


class Alarms:
    """The alarms of one recovery manager. Used by one scan at a time; `standing` may be read from any thread."""

    def __init__(self, settings: RecoverySettings) -> None:
        self._in_doubt = settings.alarm_in_doubt
        self._slots = settings.alarm_slots
        #: When this process has first seen what is in doubt: not every database tells an age.
        self._first: dict[str, float] = {}
        #: The oldest first.
        self.standing: tuple[Alarm, ...] = ()

    def follow(self, former: Alarms) -> None:
        """Go on with what another has raised."""
        self._first = former._first
        self.standing = former.standing

    def update(self, in_doubt: Iterable[InDoubt], silent: Mapping[str, str], slots: Mapping[str, Slots]) -> None:
        """Raise, keep and end alarms, as the scan that ends now has found things; what is news is logged."""
        known = {(alarm.kind, alarm.subject): alarm for alarm in self.standing}
        found = [*self._overdue(in_doubt), *_unreachable(silent), *self._short(slots)]
        after = []
        for alarm in found:
            before = known.pop((alarm.kind, alarm.subject), None)
            after.append(alarm if before is None else replace(alarm, since=before.since))
            if before is None:
                logger.warning("alarm, %s", alarm)
        for ended in known.values():
            logger.warning("the alarm is over, %s %s", ended.kind, ended.subject)
        self.standing = tuple(sorted(after, key=lambda alarm: alarm.since))

    def _overdue(self, in_doubt: Iterable[InDoubt]) -> list[Alarm]:
        now = time.monotonic()
        unresolved = [each for each in in_doubt if each.unresolved]
        self._first = {each.gtrid: self._first.get(each.gtrid, now) for each in unresolved}
        found = []
        for each in unresolved:
            age = max(each.age or 0.0, now - self._first[each.gtrid])
            if self._in_doubt is not None and age > self._in_doubt:
                text = (
                    f"{each.gtrid} is in doubt for longer than {self._in_doubt:g} s (alarm.in-doubt), and what it has "
                    f"prepared keeps its locks. Next: {each.next}"
                )
                found.append(Alarm(AlarmKind.OVERDUE.value, each.gtrid, text))
        return found

    def _short(self, slots: Mapping[str, Slots]) -> list[Alarm]:
        return [
            Alarm(
                AlarmKind.SLOTS.value,
                name,
                f"of the {each.maximum} prepared transactions that the server of {name} can hold, {each.taken} are "
                f"taken (alarm.slots = {self._slots:g}); with none left, what prepares there rolls back. End what is "
                "in doubt, or raise max_prepared_transactions and restart the server",
            )
            for name, each in slots.items()
            if self._slots is not None and each.taken >= self._slots * each.maximum
        ]


def _unreachable(silent: Mapping[str, str]) -> list[Alarm]:
    return [
        Alarm(
            AlarmKind.UNREACHABLE.value,
            name,
            f"datasource {name} has not answered, and what it holds stays as it is until it does: {reason}",
        )
        for name, reason in silent.items()
    ]
