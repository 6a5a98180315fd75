"""What a store keeps as text under a gtrid's key: a decision, or before it the note of a last resource."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from txpool import failpoints
from txpool.errors import LogError, LogUnknown
from txpool.log.base import Decision
from txpool.packed import MappingPacker, Plain
from txpool.resources.base import BranchRecord, Refused, decode, decode_last, encode, encode_last
from txpool.xid import Xid, split_gtrid

#: How many decisions are read at a time.
PAGE = 2000


class _Incarnation(Protocol):
    """This process's own."""

    name: str
    #: What its gtrids begin with.
    prefix: str


class DecisionRecords(ABC):
    """Writes both; a base of the stores that keep texts."""

    _current: Any  # an _Incarnation, or None
    #: Does work durably in the store, and returns what that returns. Errors: LogError, LogUnknown.
    _do_durably: Callable[..., Exception | None]

    @abstractmethod
    def _decide(self, store: Any, gtrid: str, incarnation: str, text: str) -> Exception | None:
        """Write the text, unless the key is taken or the incarnation is fenced; why it was not written."""

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        text = encode(branches)
        if failpoints.armed:
            failpoints.hit("log.record")
        self._write(gtrid, text)
        if failpoints.armed:
            failpoints.hit("log.recorded")

    def note_last(self, gtrid: str, datasource: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.last")
        self._write(gtrid, encode_last(datasource))

    def _write(self, gtrid: str, text: str) -> None:
        current: _Incarnation | None = self._current
        if current is not None and gtrid.startswith(current.prefix):
            incarnation = current.name
        else:
            incarnation = split_gtrid(gtrid).incarnation
        try:
            error = self._do_durably(self._decide, gtrid, incarnation, text)
        except LogUnknown:
            raise
        except LogError as failure:
            raise Refused(f"{gtrid} was not decided, and rolls back: {failure}") from failure
        if error is not None:
            raise error


def decisions_in(rows: Iterable[tuple[str, str, float]], log: str) -> Mapping[str, Decision]:
    """The decisions among the rows of gtrid, text and time; very many are packed.

    LogError, which names the log, if one cannot be read.
    """
    found = MappingPacker(_pack, _unpack)
    try:
        for gtrid, text, created in (row for row in rows if not decode_last(row[1])):
            found.add(gtrid, Decision(gtrid, decode(gtrid, text), created))
    except ValueError as error:
        raise LogError(f"{log}: {error}. Nothing was done") from error
    return found.packed()


def _pack(decision: Decision) -> Plain:
    branches = tuple((each.xid.bqual, *each[1:3], dict(each.evidence)) for each in decision.branches)
    return decision.recorded_at, branches


def _unpack(plain: Plain) -> Decision:
    gtrid, recorded_at, branches = plain
    return Decision(gtrid, tuple(BranchRecord(Xid(gtrid, bqual), *rest) for bqual, *rest in branches), recorded_at)


def pages(read: Callable[[str, int], Sequence[tuple[str, str, float]]]) -> Iterator[tuple[str, str, float]]:
    """All rows, in the order of their gtrids. `read` returns some that follow a gtrid, at most so many.

    Each row is read once, at its own moment: what is decided meanwhile counts or not, as after one query for all.
    """
    after = ""
    while page := read(after, PAGE):
        yield from page
        after = page[-1][0]


def last_resources_in(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By gtrid: the datasources of the notes among the rows of gtrid and text."""
    return {gtrid: datasource for gtrid, text in rows if (datasource := decode_last(text)) is not None}
