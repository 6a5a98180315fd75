"""What the real code is given: branches, a log, resource managers and tables, each call of which is a command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tests.crash.explorer.world import GTRID, INCARNATION, LEDGER, NODE, RIGHT, No, Rec, freeze, thaw
from txpool.log.base import Decision, Heuristic, Life, Memo
from txpool.resources.base import Answer, BranchRecord, MarkedRow, PreparedBranch, Refused, Settled, Vote
from txpool.xid import Xid

_ANSWERS = {
    "committed": Answer.COMMITTED,
    "aborted": Answer.ROLLED_BACK,
    "absent": Answer.LOST,
    "in progress": Answer.UNKNOWN,
}


class Port(Protocol):
    """Where a process's commands go."""

    flaws: frozenset[str]

    def call(self, *command: Any) -> Any:
        """The answer; an exception where there is none, or an error."""


class ModelBranch:
    """A branch over one session, with the states of PostgreSQL's."""

    idle = False

    def __init__(self, port: Port, datasource: str, *, evidence: bool, xid: Xid | None = None) -> None:
        self.datasource = datasource
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

    def name(self, xid: Xid) -> None:
        self._xid = xid

    def disturb(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def start_prepare(self) -> None:
        if self._stage == "prepared":
            return
        self._stage = "lost"
        self._send("prepare", self.datasource, self._xid.bqual)

    def await_prepare(self) -> Vote:
        if self._stage == "prepared":
            return Vote.COMMIT
        if isinstance(self._reply, No):
            self._stage = "refused"
        vote = self._receive()
        self._stage, self._evidence = "prepared", self._known
        return Vote(vote)

    def start_commit(self) -> None:
        self._send("commit", self.datasource, self._evidence, True)

    def await_commit(self) -> Answer:
        return _ANSWERS[self._receive()]

    def start_rollback(self) -> None:
        if self._stage == "prepared":
            self._send("rollback", self.datasource, self._evidence, True)

    def await_rollback(self) -> Answer:
        if self._stage == "prepared":
            return _ANSWERS[self._receive()]
        if self._stage == "lost":
            answer = _ANSWERS[self._port.call("rollback", self.datasource, False, True)]
            return Answer.UNKNOWN if answer is Answer.LOST else answer
        self._port.call("leave", self.datasource)
        return Answer.ROLLED_BACK

    def commit_one_phase(self) -> Answer:
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

    def __init__(self, port: Port) -> None:
        self._port = port
        self._recs: tuple[Rec, ...] = ()

    def disturb(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def commit_one_phase(self) -> Answer:
        return _alone(self._port, LEDGER)

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

    def abort(self, gtrid: str) -> Settled:
        kept = self._port.call("abort", LEDGER, gtrid, self.identity())
        return Settled.ABORTED if kept is None else Settled.COMMITTED

    def forget(self, gtrid: str) -> None:
        try:
            self._port.call("delete", LEDGER, (gtrid,))
        except Exception:
            return  # a clean-up queue deletes it another time, or recovery does

    def rollback(self) -> Answer:
        self._port.call("leave", LEDGER)
        return Answer.ROLLED_BACK


def _alone(port: Port, datasource: str) -> Answer:
    try:
        port.call("alone", datasource)
    except No:
        return Answer.ROLLED_BACK
    except Exception:
        return Answer.UNKNOWN
    return Answer.COMMITTED


class ModelLog:
    """A process's decision log."""

    node = NODE
    incarnation = INCARNATION

    def __init__(self, port: Port) -> None:
        self._call = port.call
        self._flaws = port.flaws

    def nodes(self) -> frozenset[str]:
        return frozenset({NODE})

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if "snapshot" in self._flaws:
            if self.is_fenced(INCARNATION):
                raise Refused("it is fenced")
            self._call("insert", "log", gtrid, freeze(branches))
            return
        self._call("record", "log", gtrid, freeze(branches))

    def abort(self, gtrid: str) -> Settled:
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

    def incarnations(self) -> dict[str, Life]:
        return dict(self._call("incarnations", "log"))

    def note(self, heuristic: Heuristic) -> None:
        self._call("note", "log", heuristic.bqual, heuristic.decided, heuristic.ended)

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(GTRID, b, "", decided, ended) for b, decided, ended in self._call("heuristics", "log")]

    def dismiss(self, gtrid: str, bqual: str | None = None) -> None:
        raise AssertionError("only a person dismisses")

    def purge(self, gtrids: Iterable[str]) -> None:
        self._call("purge", "log", tuple(gtrids))

    def expire(self, incarnations: Iterable[str]) -> None:
        self._call("expire", "log", tuple(incarnations))

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        return set(self._call("expired", "log", tuple(incarnations or ())))

    def keep(self, memo: Memo) -> None:
        """Nothing depends on one."""

    def memos(self, kind: str) -> list[Memo]:
        return []

    def drop(self, kind: str, names: Iterable[str]) -> None:
        raise AssertionError("there are none")

    def close(self) -> None:
        """Nothing: a model's process ends by dying."""


class ModelDataSource:
    """A datasource as recovery sees it; resource manager and table of marks in one."""

    def __init__(self, port: Port, name: str) -> None:
        self.name = name
        self.mode = "cmr" if name == LEDGER else "xa"
        self._port = port

    def resource_manager(self) -> ModelDataSource:
        return self

    def xids_table(self, **_options: Any) -> ModelDataSource:
        return self

    def identity(self) -> str:
        return self.name

    def recover(self) -> list[PreparedBranch]:
        return [PreparedBranch(Xid(GTRID, bqual)) for bqual in self._port.call("list", self.name)]

    def commit(self, record: BranchRecord) -> Answer:
        return self._end("commit", record)

    def rollback(self, record: BranchRecord) -> Answer:
        return self._end("rollback", record)

    def read(self) -> list[MarkedRow]:
        return [_row(gtrid, kept) for gtrid, kept in self._port.call("rows", LEDGER)]

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        return _row(gtrid, self._port.call("tombstone", LEDGER, gtrid, identity))

    def delete(self, gtrids: Iterable[str]) -> None:
        self._port.call("delete", LEDGER, tuple(gtrids))

    def _end(self, verb: str, record: BranchRecord) -> Answer:
        try:
            answer = self._port.call(verb, self.name, bool(record.evidence), False)
            if answer == "nota":  # MariaDB: no answer while the session that prepared is connected
                listed = "believed" not in self._port.flaws and self._port.call("list", self.name)
                return Answer.UNKNOWN if listed else Answer.LOST
        except Exception:
            return Answer.UNKNOWN
        return _ANSWERS[answer]


def _row(gtrid: str, kept: tuple[Rec, ...] | None) -> MarkedRow:
    return MarkedRow(gtrid, NODE, kept is not None, thaw(kept or ()))
