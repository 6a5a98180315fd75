"""Location notes: where each node prepares, and as which login role; durable before the first PREPARE there.

By these notes recovery knows which databases it must reach, also those that its own configuration does not name, and
by whom a branch must have been prepared to be ours. They are side records, one for each node, database and login role,
and a second one beside each if the datasource was configured in code: how it is reached.

A marked datasource that decides is noted, too, if it has a file or a login. Such a note only helps to find it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import time
from typing import Protocol

from txpool import failpoints
from txpool.errors import LogError, described
from txpool.log.base import SideRecord
from txpool.log.formats import pack, require, unpack
from txpool.resources.base import PrepareLocation

#: The kind of side record that each incarnation has which writes location notes. The first version wrote none.
INCARNATION = "incarnation"

_KIND = "datasource"
#: The kinds of side records beside a note without a path, of the same name: the login. The first versions read none.
_LOGIN, _DECIDER_LOGIN = "login", "login of a deciding datasource"
#: The kind of side record of a marked datasource that decides. The first versions read none.
_DECIDER = "deciding datasource"


@dataclass(frozen=True, slots=True)
class LocationNote:
    """A node has prepared there, or was about to. `recorded_at` is wall-clock seconds, for people only."""

    node: str
    location: PrepareLocation
    recorded_at: float = 0.0

    @property
    def name(self) -> str:
        """The side record's name. A database without an identity is named by its datasource."""
        return f"{self.node} {self.location.identity or f'datasource {self.location.datasource}'} {self.location.role}"

    @property
    def side_record(self) -> SideRecord:
        """The side record that holds it, but for the login."""
        fields = self.location._asdict()
        del fields["login"]
        return SideRecord(_KIND, self.name, pack(node=self.node, **fields), self.recorded_at)

    @property
    def login_record(self) -> SideRecord | None:
        """The side record of the login, if there is one."""
        login = self.location.login
        return SideRecord(_LOGIN, self.name, pack(login=login), self.recorded_at) if login else None

    @property
    def side_records(self) -> list[SideRecord]:
        """All that the log keeps of it, in the order in which it is written."""
        return [record for record in (self.login_record, self.side_record) if record is not None]

    def is_of(self, identity: str, datasource: str) -> bool:
        """Whether it is about the database of this identity; if either has none, of this datasource."""
        if identity and self.location.identity:
            return identity == self.location.identity
        return datasource == self.location.datasource


class _LocationLog(Protocol):
    """What `LocationNotes` needs of the log that it is a base of."""

    _noted: set[PrepareLocation]

    @property
    def node(self) -> str: ...

    def nodes(self) -> frozenset[str]: ...

    def put_record(self, record: SideRecord) -> None: ...

    def side_records(self, kind: str) -> list[SideRecord]: ...

    def delete_unchanged(self, records: Iterable[SideRecord]) -> None: ...


class LocationNotes:
    """The location notes of a log; a base of every store."""

    #: The locations that this process has noted, so that later transactions only look here.
    _noted: set[PrepareLocation]

    def note_location(self: _LocationLog, location: PrepareLocation) -> None:
        """Note durably that this node prepares there; no I/O if this process has noted it before. LogError."""
        # A new incarnation begins with a new set: what an earlier one has noted may have been retired meanwhile.
        noted = self._noted
        if location in noted:
            return
        if failpoints.armed:
            failpoints.hit("log.note")
        note = LocationNote(self.node, location, time())
        try:
            for record in note.side_records:
                self.put_record(record)
        except LogError as error:
            where = f"{self.node} prepares in datasource {location.datasource}"
            error.add_note(f"that {where} could not be noted in the log")
            raise
        noted.add(location)

    def note_decider(self: _LocationLog, location: PrepareLocation) -> None:
        """Note durably the file, or the login, of a marked datasource that decides for this node; no I/O as above.

        LogError.
        """
        if not (location.path or location.login) or location in self._noted:
            return
        if failpoints.armed:
            failpoints.hit("log.note")
        note = LocationNote(self.node, location, time())
        if note.login_record is not None:
            self.put_record(replace(note.login_record, kind=_DECIDER_LOGIN))
        self.put_record(replace(note.side_record, kind=_DECIDER))
        self._noted.add(location)

    def deciders(self: _LocationLog) -> list[LocationNote]:
        """The noted marked datasources of our nodes; one that this version cannot read counts as missing."""
        nodes, found = self.nodes(), []
        for record in self.side_records(_DECIDER):
            if _node_of(record) in nodes:
                with suppress(LogError):
                    found.append(_parsed(record))
        return _with_logins(self, found, _DECIDER_LOGIN)

    def locations(self: _LocationLog) -> list[LocationNote]:
        """The notes of our nodes. LogError if one has a later format."""
        nodes = self.nodes()
        notes = [_parsed(record) for record in self.side_records(_KIND) if _node_of(record) in nodes]
        return _with_logins(self, notes, _LOGIN)

    def noted_nodes(self: _LocationLog) -> set[str]:
        """The nodes that have location notes, whether they are ours or not."""
        return {_node_of(record) for record in self.side_records(_KIND)}

    def retire_locations(self: _LocationLog, notes: Iterable[LocationNote]) -> None:
        """Delete these notes durably, each only if nobody has written it again since it was read.

        Whoever retires them has made sure that nothing of their node is prepared there any more.
        """
        self.delete_unchanged(record for note in notes for record in note.side_records)

    def incarnations_noting(self: _LocationLog) -> set[str]:
        """The incarnations that note where they prepare: all but those of the first version."""
        records = self.side_records(INCARNATION)
        for record in records:
            require(record.text, f"incarnation {record.name}")
        return {record.name for record in records}


def _node_of(record: SideRecord) -> str:
    return record.name.partition(" ")[0]


def _with_logins(log: _LocationLog, notes: list[LocationNote], kind: str) -> list[LocationNote]:
    """The notes, those without a path with their logins, which are side records of this kind."""
    if all(note.location.path for note in notes):
        return notes
    logins = {record.name: record for record in log.side_records(kind)}
    return [note if note.location.path else _with_login(note, logins.get(note.name)) for note in notes]


def _with_login(note: LocationNote, record: SideRecord | None) -> LocationNote:
    """The note with its login, which counts as missing if this version cannot read it: it only helps to find."""
    try:
        login = "" if record is None else unpack(record)["login"]
    except (LogError, TypeError, KeyError):
        login = ""
    return replace(note, location=note.location._replace(login=str(login)))


def _parsed(record: SideRecord) -> LocationNote:
    found = unpack(record)
    try:
        return LocationNote(found.pop("node"), PrepareLocation(**found), record.recorded_at)
    except (TypeError, KeyError, AttributeError) as error:
        raise LogError(f"the log's note of {record.name} is damaged: {described(error)}. Nothing was done") from error
