"""Timeout notes: the largest timeout that any transaction of an incarnation has had, durable before its first PREPARE.

By it recovery tells a process that hangs from one that is slow. It only says when to look: no outcome depends on it. An
incarnation without a note, such as one of a former version, counts as one that has had a transaction without a timeout.
A note is a side record of its own for each value, so that one that lands late takes none of a larger value back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from time import time
from typing import Final, Protocol

from txpool import failpoints
from txpool.errors import LogError
from txpool.log.base import SideRecord
from txpool.log.formats import pack, unpack
from txpool.xid import split_gtrid

#: The kind of side record that holds one. Its name is the incarnation and the timeout.
TIMEOUT: Final = "timeout"


class _TimeoutLog(Protocol):
    """What `TimeoutNotes` needs of the log that it is a base of."""

    _timeouts: dict[str, float]

    def put_record(self, record: SideRecord) -> None: ...

    def side_records(self, kind: str) -> list[SideRecord]: ...

    def delete_records(self, kind: str, names: Iterable[str]) -> None: ...

    def expired(self, incarnations: Collection[str]) -> set[str]: ...


class TimeoutNotes:
    """The timeout notes of a log; a base of every store."""

    #: By the beginning of an incarnation's gtrids: the largest timeout that this process has noted.
    _timeouts: dict[str, float]

    def note_timeout(self: _TimeoutLog, gtrid: str, timeout: float) -> None:
        """Note durably that a transaction has this timeout, in seconds, or none (`inf`). LogError.

        No I/O if this process has noted one that is as large.
        """
        beginning = gtrid[: gtrid.rfind(":")]
        if timeout <= self._timeouts.get(beginning, -1.0):
            return
        incarnation = split_gtrid(gtrid).incarnation
        if failpoints.armed:
            failpoints.hit("log.timeout")
        text = pack(seconds=None if timeout == inf else timeout)
        try:
            self.put_record(SideRecord(TIMEOUT, f"{incarnation} {timeout}", text, time()))
        except LogError as error:
            error.add_note(f"that a transaction of {incarnation} has a timeout of {timeout} s could not be noted")
            raise
        self._timeouts[beginning] = max(timeout, self._timeouts.get(beginning, -1.0))

    def timeouts(self: _TimeoutLog) -> dict[str, float]:
        """By incarnation: the largest timeout that is noted, in seconds; `inf` if there was none."""
        found: dict[str, float] = {}
        for record in self.side_records(TIMEOUT):
            incarnation = record.name.partition(" ")[0]
            found[incarnation] = max(_seconds(record), found.get(incarnation, -1.0))
        return found

    def retire_timeouts(self: _TimeoutLog) -> None:
        """Delete the notes of incarnations that have expired."""
        names: dict[str, list[str]] = {}
        for record in self.side_records(TIMEOUT):
            names.setdefault(record.name.partition(" ")[0], []).append(record.name)
        gone = [name for incarnation in self.expired(names) for name in names[incarnation]] if names else []
        if gone:
            self.delete_records(TIMEOUT, gone)


def _seconds(record: SideRecord) -> float:
    """What a note says; one that cannot be read, as of a later version, says that there was no timeout."""
    try:
        seconds = unpack(record)["seconds"]
    except (LogError, TypeError, KeyError):
        return inf
    return float(seconds) if isinstance(seconds, int | float) else inf
