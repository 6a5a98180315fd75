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
from txpool.log.base import Memo
from txpool.log.formats import pack, require, unpack
from txpool.resources.base import Site

#: The memo of an incarnation that writes notes: one without is of an earlier version, which wrote none.
INCARNATION = "incarnation"

_KIND = "datasource"


@dataclass(frozen=True, slots=True)
class SiteNote:
    """A node has prepared there, or was about to. `made` is wall-clock seconds, for people only."""

    node: str
    site: Site
    made: float = 0.0

    @property
    def name(self) -> str:
        """The key in the log: a database that does not tell its identity goes by its datasource's name."""
        return f"{self.node} {self.site.identity or f'datasource {self.site.datasource}'} {self.site.role}"

    def is_of(self, identity: str, datasource: str) -> bool:
        """Whether it is about the database of this identity; by the datasource's name where either is not told."""
        if identity and self.site.identity:
            return identity == self.site.identity
        return datasource == self.site.datasource


class _Memos(Protocol):
    _noted: set[Site]

    @property
    def node(self) -> str: ...

    def nodes(self) -> frozenset[str]: ...

    def keep(self, memo: Memo) -> None: ...

    def memos(self, kind: str) -> list[Memo]: ...

    def drop(self, kind: str, names: Iterable[str]) -> None: ...


class SiteNotes:
    """The part of any log that this is."""

    #: Those that this process has noted, so that a later transaction asks a set and nothing else.
    _noted: set[Site]

    def note_site(self: _Memos, site: Site) -> None:
        """Note durably that this node prepares there; at once where this process has done so before. LogError."""
        if site in self._noted:
            return
        if failpoints.armed:
            failpoints.hit("log.note")
        note = SiteNote(self.node, site, time())
        try:
            self.keep(Memo(_KIND, note.name, pack(node=note.node, **asdict(site)), note.made))
        except LogError as error:
            error.add_note(f"that {self.node} prepares in datasource {site.datasource} could not be noted in the log")
            raise
        self._noted.add(site)

    def sites(self: _Memos) -> list[SiteNote]:
        """The notes of our nodes. LogError where one is of a later format."""
        nodes = self.nodes()
        return [_parsed(memo) for memo in self.memos(_KIND) if memo.name.partition(" ")[0] in nodes]

    def retire_sites(self: _Memos, notes: Iterable[SiteNote]) -> None:
        """Drop these notes durably: nothing of their node is prepared there any more."""
        self.drop(_KIND, [note.name for note in notes])

    def noting(self: _Memos) -> set[str]:
        """The incarnations that note where they prepare, as all do since this version."""
        found = self.memos(INCARNATION)
        for memo in found:
            require(memo.text, f"incarnation {memo.name}")
        return {memo.name for memo in found}


def _parsed(memo: Memo) -> SiteNote:
    found = unpack(memo)
    try:
        return SiteNote(found.pop("node"), Site(**found), memo.made)
    except (TypeError, KeyError, AttributeError) as error:
        raise LogError(f"the log's note of {memo.name} is damaged: {error}. Nothing was done") from error
