"""What the real code is given: branches, a log, resource managers and tables, each call of which is a command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tests.crash.explorer.world import GTRID, INCARNATION, LEDGER, NODE, OURS, RIGHT, No, Rec, freeze, site_of, thaw
from txpool.log.base import Decision, Heuristic, IncarnationState, SideRecord
from txpool.log.locations import LocationNote
from txpool.resources.base import (
    BranchOutcome,
    BranchRecord,
    MarkedRow,
    PreparedBranch,
    PrepareLocation,
    PrepareVote,
    Refused,
    Resolution,
    Role,
)
from txpool.xid import Xid

_ANSWERS = {
    "committed": BranchOutcome.COMMITTED,
    "aborted": BranchOutcome.ROLLED_BACK,
    "absent": BranchOutcome.LOST,
    "in progress": BranchOutcome.UNKNOWN,
    "refused": BranchOutcome.UNKNOWN,  # it belongs to somebody else
}


class Port(Protocol):
    """Where a process's commands go."""

    flaws: frozenset[str]

    def call(self, *command: Any) -> Any:
        """The answer; an exception where there is none, or an error."""


class ModelReadOnlyCheck:
    """The question to a part, and the end of one that has only read."""

    def __init__(self, port: Port, datasource: str) -> None:
        self.datasource = datasource
        self._port = port
        self._reply: bool | BaseException = False

    def start_asking(self) -> None:
        try:
            self._reply = self._port.call("ask", self.datasource)
        except BaseException as error:
            self._reply = error

    def await_answer(self) -> bool:
        if isinstance(self._reply, BaseException):
            raise self._reply
        return self._reply

    def require_alive(self) -> None:
        """Nobody ends it but its own command, a crash or a cut, which the next command meets."""

    def start_commit(self) -> None:
        self._port.call("alone", self.datasource)

    def await_commit(self) -> None:
        """It was answered."""

    def drop(self) -> None:
        self._port.call("leave", self.datasource)


class ModelBranch:
    """A branch over one session, with the states of PostgreSQL's."""

    idle = False

    def __init__(
        self, port: Port, datasource: str, *, evidence: bool, xid: Xid | None = None, asked: bool = False
    ) -> None:
        self.datasource = datasource
        self._asked = asked
        self._port = port
        self._xid = xid or Xid("", "")
        self._stage = "unsent" if xid is None else "prepared"
        self._known = evidence
        self._evidence = evidence and xid is not None
        self._reply: str | BaseException = ""

    @property
    def record(self) -> BranchRecord:
        evidence = {"xid": "7"} if self._evidence else {}
        return BranchRecord(self._xid, self.datasource, self.datasource, evidence)

    @property
    def location(self) -> PrepareLocation:
        return site_of(self.datasource)

    def name(self, xid: Xid) -> None:
        self._xid = xid

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def read_only_check(self, *, committing: bool) -> ModelReadOnlyCheck | None:
        return ModelReadOnlyCheck(self._port, self.datasource) if self._asked else None

    def rollback(self) -> BranchOutcome:
        self._port.call("leave", self.datasource)
        return BranchOutcome.ROLLED_BACK

    def start_prepare(self) -> None:
        if self._stage == "prepared":
            return
        self._stage = "lost"
        self._send("prepare", self.datasource, self._xid.bqual)

    def await_prepare(self) -> PrepareVote:
        if self._stage == "prepared":
            return PrepareVote.COMMIT
        if isinstance(self._reply, No):
            self._stage = "refused"
        vote = self._receive()
        self._stage, self._evidence = "prepared", self._known
        return PrepareVote(vote)

    def start_commit(self) -> None:
        self._send("commit", self.datasource, self._xid.bqual, self._evidence, True)

    def await_commit(self) -> BranchOutcome:
        return _ANSWERS[self._receive()]

    def start_rollback(self) -> None:
        if self._stage == "prepared":
            self._send("rollback", self.datasource, self._xid.bqual, self._evidence, True)

    def await_rollback(self) -> BranchOutcome:
        if self._stage == "prepared":
            return _ANSWERS[self._receive()]
        if self._stage == "lost":
            answer = _ANSWERS[self._port.call("rollback", self.datasource, self._xid.bqual, False, True)]
            return BranchOutcome.UNKNOWN if answer is BranchOutcome.LOST else answer
        return self.rollback()

    def commit_one_phase(self) -> BranchOutcome:
        return _alone(self._port, self.datasource)

    def _send(self, *command: Any) -> None:
        try:
            self._reply = self._port.call(*command)
        except BaseException as error:
            self._reply = error

    def _receive(self) -> str:
        if isinstance(self._reply, BaseException):
            raise self._reply
        return self._reply


class ModelMarked:
    """A marked branch: the row in its own local transaction, whose commit is the decision."""

    idle = False
    datasource = LEDGER

    def __init__(self, port: Port, *, asked: bool = False) -> None:
        self._port = port
        self._asked = asked
        self._recs: tuple[Rec, ...] = ()

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def commit_one_phase(self) -> BranchOutcome:
        return _alone(self._port, LEDGER)

    def read_only_check(self, *, committing: bool) -> ModelReadOnlyCheck | None:
        return ModelReadOnlyCheck(self._port, LEDGER) if self._asked else None

    def identity(self) -> str:
        return RIGHT

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        self._recs = freeze(branches)
        if "one message" not in self._port.flaws:
            self._port.call("mark", LEDGER, gtrid, self._recs)

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if "one message" in self._port.flaws:
            self._port.call("both", LEDGER, gtrid, self._recs)
        else:
            recs = self._recs if "unsealed" in self._port.flaws else freeze(branches)
            self._port.call("seal", LEDGER, gtrid, recs)

    def abort(self, gtrid: str) -> Resolution:
        kept = self._port.call("abort", LEDGER, gtrid, self.identity())
        return Resolution.ABORTED if kept is None else Resolution.COMMITTED

    def forget(self, gtrid: str) -> None:
        try:
            self._port.call("delete", LEDGER, (gtrid,))
        except Exception:
            return  # a clean-up queue deletes it another time, or recovery does

    def rollback(self) -> BranchOutcome:
        self._port.call("leave", LEDGER)
        return BranchOutcome.ROLLED_BACK


def _alone(port: Port, datasource: str) -> BranchOutcome:
    try:
        port.call("alone", datasource)
    except No:
        return BranchOutcome.ROLLED_BACK
    except Exception:
        return BranchOutcome.UNKNOWN
    return BranchOutcome.COMMITTED


class ModelLog:
    """A process's decision log."""

    node = NODE
    incarnation = INCARNATION

    def __init__(self, port: Port, noted: Iterable[str] | None = None) -> None:
        """`noted` is where the node has prepared long ago: nobody notes that again, nor needs to look."""
        self._call = port.call
        self._flaws = port.flaws
        self._noted = None if noted is None else [LocationNote(NODE, site_of(name)) for name in noted]

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

    def record_heuristic(self, heuristic: Heuristic) -> None:
        self._call("record_heuristic", "log", heuristic.bqual, heuristic.decided, heuristic.ended)

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(GTRID, b, "", decided, ended) for b, decided, ended in self._call("heuristics", "log")]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        raise AssertionError("only a person dismisses")

    def purge(self, gtrids: Iterable[str]) -> None:
        self._call("purge", "log", tuple(gtrids))

    def expire(self, incarnations: Iterable[str]) -> None:
        self._call("expire", "log", tuple(incarnations))

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        return set(self._call("expired", "log", tuple(incarnations or ())))

    def note_location(self, site: PrepareLocation) -> None:
        if self._noted is None:
            self._call("note_location", "log", site.datasource)

    def locations(self) -> list[LocationNote]:
        if self._noted is not None:
            return self._noted
        return [LocationNote(NODE, site_of(name)) for name in sorted(self._call("locations", "log"))]

    def retire_locations(self, notes: Iterable[LocationNote]) -> None:
        raise AssertionError("only a person retires one")

    def incarnations_noting(self) -> set[str]:
        return {INCARNATION}

    def put_record(self, memo: SideRecord) -> None:
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
                return BranchOutcome.UNKNOWN if listed else BranchOutcome.LOST
        except Exception:
            return BranchOutcome.UNKNOWN
        return _ANSWERS[answer]


class ModelOtherDatasources:
    """What recovery reaches by a note alone."""

    def __init__(self, port: Port, places: Iterable[ModelDataSource]) -> None:
        self._port = port
        self._places = {place.name: place for place in places}

    def find(self, note: LocationNote) -> tuple[ModelDataSource, str]:
        self._port.call("reach", note.location.datasource)
        return self._places[note.location.datasource], ""

    def marked(self, name: str) -> ModelDataSource | None:
        return None


def _row(gtrid: str, kept: tuple[Rec, ...] | None) -> MarkedRow:
    return MarkedRow(gtrid, NODE, kept is not None, thaw(kept or ()))
