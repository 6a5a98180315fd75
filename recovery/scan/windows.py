"""Windows: a snapshot in parts, if it is of very many transactions.

A window is all that a pass has read of some thousand transactions, in the order of their gtrids. The whole was read
before the first of them, in the only order that is safe: see `reading`. No rule looks from one transaction at another,
so that whoever acts on a window after the other does as with the whole, and one window at a time is in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from recovery.scan.datasources.datasources import Listing
from recovery.scan.snapshot import Snapshot
from txpool import packed
from txpool.packed import Packed, PackedMapping

V = TypeVar("V")

_key = itemgetter(0)
_SETS: Final = ("finished", "aborted")
#: By datasource, things that have gtrids.
_LISTS: Final = ("staging_tables", "branch_rows")
_MAPPINGS: Final = ("pointers", "decisions", "last_resources", "seen_for", "notes")


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a snapshot: the transactions that follow `after`, up to `last`; None has no end on that side."""

    snapshot: Snapshot
    after: str | None = None
    last: str | None = None

    def part_of(self, things: Sequence[V], gtrid_of: Callable[[V], str]) -> Iterable[V]:
        """Those of its transactions. Packed things are packed by their gtrids."""
        return packed.between(things, self.after, self.last, gtrid_of)


def windows(snapshot: Snapshot) -> Iterator[Window]:
    """The windows of a snapshot. Few transactions are one window, which has the snapshot itself.

    What is not of one transaction is in each window, such as the incarnations.
    """
    parts = _FoundByGtrid(snapshot)
    if parts.count <= packed.FEW:
        yield Window(snapshot)
        return
    cuts = parts.cuts()
    for after, last in pairwise((None, *cuts, None)):
        yield Window(parts.between(after, last), after, last)


class _FoundByGtrid:
    """What a snapshot has by gtrid."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._whole = snapshot
        lists: dict[str, Mapping[str, Sequence[Any]]] = {name: getattr(snapshot, name) for name in _LISTS}
        lengths = [len(getattr(snapshot, name)) for name in (*_SETS, *_MAPPINGS, "heuristics")]
        lengths += [len(each) for found in (snapshot.rows, *lists.values()) for each in found.values()]
        lengths += [len(each.branches) + len(each.elsewhere) for each in snapshot.listings.values()]
        self.count = sum(lengths)
        if self.count <= packed.FEW:
            return
        self._sets = {name: _ByGtrid((each, None) for each in getattr(snapshot, name)) for name in _SETS}
        self._mappings = {name: _of(getattr(snapshot, name)) for name in _MAPPINGS}
        self._heuristics = _ByGtrid((each.gtrid, each) for each in snapshot.heuristics)
        self._rows = {name: _of(found) for name, found in snapshot.rows.items()}
        self._lists = {
            kind: {name: _ByGtrid((each.gtrid, each) for each in found) for name, found in by_name.items()}
            for kind, by_name in lists.items()
        }

    def cuts(self) -> list[str]:
        """The last gtrids of all windows but the last."""
        ends: list[tuple[str, int]] = []
        groups: list[Mapping[str, _ByGtrid[Any] | _PackedByGtrid[Any]]] = [self._sets, self._mappings, self._rows]
        for group in (*groups, {"": self._heuristics}, *self._lists.values()):
            ends += (end for each in group.values() for end in each.ends())
        for listing in self._whole.listings.values():
            ends += (end for each in (listing.branches, listing.elsewhere) for end in _ends_of_branches(each))
        found, count = [], 0
        for gtrid, more in sorted(ends):
            count += more
            if count >= packed.FEW:
                found.append(gtrid)
                count = 0
        return sorted(set(found))

    def between(self, after: str | None, last: str | None) -> Snapshot:
        """The window of these."""
        sets = {name: frozenset(dict(each.between(after, last))) for name, each in self._sets.items()}
        mappings = {name: dict(each.between(after, last)) for name, each in self._mappings.items()}
        listings: Mapping[str, Listing] = {
            name: listing.between(after, last) for name, listing in self._whole.listings.items()
        }
        lists = {
            kind: {name: [each for _, each in found.between(after, last)] for name, found in by_name.items()}
            for kind, by_name in self._lists.items()
        }
        found: dict[str, Any] = {**sets, **mappings, **lists, "listings": listings}
        return replace(
            self._whole,
            **found,
            heuristics=tuple(each for _, each in self._heuristics.between(after, last)),
            rows={name: dict(each.between(after, last)) for name, each in self._rows.items()},
        )


class _ByGtrid(Generic[V]):
    """Things with their gtrids, in the order of these."""

    def __init__(self, pairs: Iterable[tuple[str, V]]) -> None:
        self._pairs = sorted(pairs, key=_key)

    def ends(self) -> Iterator[tuple[str, int]]:
        """Some gtrids, and how many there are up to each since the one before."""
        return _ends([gtrid for gtrid, _ in self._pairs])

    def between(self, after: str | None, last: str | None) -> Iterable[tuple[str, V]]:
        first = 0 if after is None else bisect_right(self._pairs, after, key=_key)
        end = len(self._pairs) if last is None else bisect_right(self._pairs, last, key=_key)
        return self._pairs[first:end]


class _PackedByGtrid(Generic[V]):
    """As `_ByGtrid`, of what is packed."""

    def __init__(self, found: PackedMapping[V]) -> None:
        self.between = found.pairs
        self._packed = found.packed

    def ends(self) -> Iterator[tuple[str, int]]:
        return _ends_of_packed(self._packed)


def _of(found: Mapping[str, V]) -> _ByGtrid[V] | _PackedByGtrid[V]:
    return _PackedByGtrid(found) if isinstance(found, PackedMapping) else _ByGtrid(found.items())


def _ends(gtrids: Sequence[str]) -> Iterator[tuple[str, int]]:
    step = packed.BLOCK
    for place in range(step - 1, len(gtrids), step):
        yield gtrids[place], step
    if len(gtrids) % step:
        yield gtrids[-1], len(gtrids) % step


def _ends_of_packed(found: Packed[Any]) -> Iterator[tuple[str, int]]:
    return ((gtrid, packed.BLOCK) for gtrid in found.lasts)


def _ends_of_branches(branches: Sequence[Any]) -> Iterator[tuple[str, int]]:
    if isinstance(branches, Packed):
        return _ends_of_packed(branches)
    return _ends(sorted(branch.xid.gtrid for branch in branches))
