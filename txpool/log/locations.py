"""Where each node prepares, and as whom: durable in the log before the first PREPARE there.

By these notes recovery knows which databases it must reach, also those that its own configuration does not name, and
whose prepared branches count there. They are kept among the log's memos, one for each node, database and login role.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from time import time
from typing import Protocol

from txpool import failpoints
from txpool.errors import LogError
from txpool.log.base import SideRecord
from txpool.log.formats import pack, require, unpack
from txpool.resources.base import PrepareLocation

#: The memo of an incarnation that writes notes: one without is of an earlier version, which wrote none.
INCARNATION = "incarnation"

_KIND = "datasource"


@dataclass(frozen=True, slots=True)
class LocationNote:
    """A node has prepared there, or was about to. `made` is wall-clock seconds, for people only."""

    node: str
    location: PrepareLocation
    recorded_at: float = 0.0

    @property
    def name(self) -> str:
        """The key in the log: a database that does not tell its identity goes by its datasource's name."""
        return f"{self.node} {self.location.identity or f'datasource {self.location.datasource}'} {self.location.role}"

    def is_of(self, identity: str, datasource: str) -> bool:
        """Whether it is about the database of this identity; by the datasource's name where either is not told."""
        if identity and self.location.identity:
            return identity == self.location.identity
        return datasource == self.location.datasource


class _SideRecords(Protocol):
    _noted: set[PrepareLocation]

    @property
    def node(self) -> str: ...

    def nodes(self) -> frozenset[str]: ...

    def put_record(self, memo: SideRecord) -> None: ...

    def side_records(self, kind: str) -> list[SideRecord]: ...

    def delete_records(self, kind: str, names: Iterable[str]) -> None: ...


class LocationNotes:
    """The part of any log that this is."""

    #: Those that this process has noted, so that a later transaction asks a set and nothing else.
    _noted: set[PrepareLocation]

    def note_location(self: _SideRecords, site: PrepareLocation) -> None:
        """Note durably that this node prepares there; at once where this process has done so before. LogError."""
        if site in self._noted:
            return
        if failpoints.armed:
            failpoints.hit("log.note")
        note = LocationNote(self.node, site, time())
        try:
            self.put_record(SideRecord(_KIND, note.name, pack(node=note.node, **asdict(site)), note.recorded_at))
        except LogError as error:
            error.add_note(f"that {self.node} prepares in datasource {site.datasource} could not be noted in the log")
            raise
        self._noted.add(site)

    def locations(self: _SideRecords) -> list[LocationNote]:
        """The notes of our nodes. LogError where one is of a later format."""
        nodes = self.nodes()
        return [_parsed(memo) for memo in self.side_records(_KIND) if memo.name.partition(" ")[0] in nodes]

    def retire_locations(self: _SideRecords, notes: Iterable[LocationNote]) -> None:
        """Drop these notes durably: nothing of their node is prepared there any more."""
        self.delete_records(_KIND, [note.name for note in notes])

    def incarnations_noting(self: _SideRecords) -> set[str]:
        """The incarnations that note where they prepare, as all do since this version."""
        found = self.side_records(INCARNATION)
        for memo in found:
            require(memo.text, f"incarnation {memo.name}")
        return {memo.name for memo in found}


def _parsed(memo: SideRecord) -> LocationNote:
    found = unpack(memo)
    try:
        return LocationNote(found.pop("node"), PrepareLocation(**found), memo.recorded_at)
    except (TypeError, KeyError, AttributeError) as error:
        raise LogError(f"the log's note of {memo.name} is damaged: {error}. Nothing was done") from error
