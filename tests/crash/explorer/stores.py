"""The decision log and the datasources that the real code is given; each call of theirs is a command."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from tests.crash.explorer.model import (
    GTRID,
    INCARNATION,
    LEDGER,
    NODE,
    OURS,
    Rec,
    freeze,
    location_of,
    thaw,
)
from tests.crash.explorer.parts import ANSWERS, Port
from txpool.log.base import Decision, Heuristic, IncarnationState, SideRecord
from txpool.log.locations import LocationNote
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, Refused, Resolution, Role
from txpool.resources.recovery_access import MarkedRow, PreparedBranch
from txpool.xid import Xid


class ModelLog:
    """A process's decision log."""

    node = NODE
    every_node = False
    incarnation = INCARNATION

    def __init__(
        self, port: Port, noted: Iterable[str] | None = None, *, last: bool = False, overdue: bool = False
    ) -> None:
        """`noted` is where the node has prepared long ago: nobody notes that again, nor needs to look.

        Without a `last` resource nobody looks for one. With `overdue`, no transaction may take any time.
        """
        self._last = last
        self._overdue = overdue
        self._call = port.call
        self._flaws = port.flaws
        self._noted = None if noted is None else [LocationNote(NODE, location_of(name)) for name in noted]

    def nodes(self) -> frozenset[str]:
        return frozenset({NODE})

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if "snapshot" in self._flaws:
            if self.is_fenced(INCARNATION):
                raise Refused("it is fenced")
            self._call("insert", "log", gtrid, freeze(branches))
            return
        self._call("record", "log", gtrid, freeze(branches))

    def abort(self, gtrid: str) -> Resolution:
        return self._call("abort", "log", gtrid)  # type: ignore[no-any-return]

    def note_last(self, gtrid: str, datasource: str) -> None:
        self._call("note_last", "log", gtrid, datasource)

    def last_resources(self) -> dict[str, str]:
        return dict(self._call("last_resources", "log")) if self._last else {}

    def abort_noted(self, gtrid: str) -> Resolution:
        return self._call("abort_noted", "log", gtrid)  # type: ignore[no-any-return]

    def forget(self, gtrid: str) -> None:
        self._call("forget", "log", gtrid)

    def point(self, gtrid: str, datasource: str) -> None:
        self._call("point", "log", gtrid, datasource)

    def fence(self, incarnation: str) -> None:
        self._call("fence", "log", incarnation)

    def is_fenced(self, incarnation: str) -> bool:
        return self._call("is_fenced", "log", incarnation)  # type: ignore[no-any-return]

    def finish(self, gtrid: str) -> None:
        self._call("finish", "log", gtrid)

    def finished(self) -> set[str]:
        return set(self._call("finished", "log"))

    def decisions(self) -> dict[str, Decision]:
        return {gtrid: Decision(gtrid, thaw(recs)) for gtrid, recs in self._call("decisions", "log")}

    def aborted(self) -> set[str]:
        return set(self._call("aborted", "log"))

    def pointers(self) -> dict[str, str]:
        return dict(self._call("pointers", "log"))

    def incarnations(self) -> dict[str, IncarnationState]:
        return dict(self._call("incarnations", "log"))

    def record_heuristic(self, *heuristics: Heuristic) -> None:
        for each in heuristics:
            self._call("record_heuristic", "log", each.bqual, each.decided, each.ended)

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(GTRID, b, "", decided, ended) for b, decided, ended in self._call("heuristics", "log")]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        self._call("dismiss_heuristics", "log", gtrid, bqual)

    def purge(self, gtrids: Iterable[str]) -> None:
        self._call("purge", "log", tuple(gtrids))

    def expire(self, incarnations: Iterable[str]) -> None:
        self._call("expire", "log", tuple(incarnations))

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        return set(self._call("expired", "log", tuple(incarnations or ())))

    def note_location(self, location: PrepareLocation) -> None:
        if self._noted is None:
            self._call("note_location", "log", location.datasource)

    def note_decider(self, location: PrepareLocation) -> None:
        assert not location.path, "a model has no file"

    def deciders(self) -> list[LocationNote]:
        return []

    def locations(self) -> list[LocationNote]:
        if self._noted is not None:
            return self._noted
        return [LocationNote(NODE, location_of(name)) for name in sorted(self._call("locations", "log"))]

    def retire_locations(self, notes: Iterable[LocationNote]) -> None:
        raise AssertionError("only a person retires one")

    def incarnations_noting(self) -> set[str]:
        return {INCARNATION}

    def note_timeout(self, gtrid: str, timeout: float) -> None:
        """It changes no outcome."""

    def timeouts(self) -> dict[str, float]:
        return {INCARNATION: -inf} if self._overdue else {}

    def retire_timeouts(self) -> None:
        """There are none."""

    def put_record(self, *records: SideRecord) -> None:
        """Nothing depends on one."""

    def side_records(self, kind: str) -> list[SideRecord]:
        return []

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        raise AssertionError("there are none")

    def close(self) -> None:
        """Nothing: a model's process ends by dying."""


class ModelDataSource:
    """A datasource as recovery sees it; resource manager and table of marks in one.

    `stranger` is what its server tells of a branch that is none of ours: the roles that may have prepared it.
    """

    def __init__(
        self, port: Port, name: str, stranger: frozenset[str], ours: frozenset[str] | None = frozenset({OURS})
    ) -> None:
        self.name = name
        self.mode = "cmr" if name == LEDGER else "xa"
        self.role = Role(self.mode)
        self._port = port
        self._stranger = stranger
        self._ours = ours

    def branch_recovery(self, *, recovery: bool = True) -> ModelDataSource:
        # Whom its own session has logged in as, the server is asked in the same breath.
        return self if recovery else ModelDataSource(self._port, self.name, self._stranger, None)

    def staging(self, **_options: Any) -> None:
        return None

    branch_rows = staging

    def xids_table(self, **_options: Any) -> ModelDataSource:
        return self

    def identity(self) -> str:
        return self.name

    def recover(self) -> list[PreparedBranch]:
        listed = self._port.call("list", self.name)
        return [
            PreparedBranch(Xid(GTRID, bqual), roles=self._ours if ours else self._stranger) for bqual, ours in listed
        ]

    def logins(self) -> frozenset[str]:
        return frozenset({OURS})

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return self._end("commit", record)

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return self._end("rollback", record)

    def read(self) -> list[MarkedRow]:
        return [_row(gtrid, kept) for gtrid, kept in self._port.call("rows", LEDGER)]

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        return _row(gtrid, self._port.call("tombstone", LEDGER, gtrid, identity))

    def delete(self, gtrids: Iterable[str]) -> None:
        self._port.call("delete", LEDGER, tuple(gtrids))

    def _end(self, verb: str, record: BranchRecord) -> BranchOutcome:
        try:
            answer = self._port.call(verb, self.name, record.xid.bqual, bool(record.evidence), False)
            if answer == "nota":  # MariaDB: no answer while the session that prepared is connected
                listed = "believed" not in self._port.flaws and self._port.call("list", self.name)
                return BranchOutcome.UNKNOWN if listed else BranchOutcome.ABSENT
        except Exception:
            return BranchOutcome.UNKNOWN
        return ANSWERS[answer]


class ModelOtherDatasources:
    """What recovery reaches by a note alone."""

    def __init__(self, port: Port, places: Iterable[ModelDataSource]) -> None:
        self._port = port
        self._places = {place.name: place for place in places}

    def find(self, note: LocationNote) -> tuple[ModelDataSource, str]:
        self._port.call("reach", note.location.datasource)
        return self._places[note.location.datasource], ""

    def marked(self, name: str, notes: Iterable[LocationNote]) -> ModelDataSource | None:
        return None


def _row(gtrid: str, kept: tuple[Rec, ...] | None) -> MarkedRow:
    return MarkedRow(gtrid, NODE, kept is not None, thaw(kept or ()))
