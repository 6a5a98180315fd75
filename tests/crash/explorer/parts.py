"""The branches that the real coordinator is given; each call of theirs is a command."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from tests.crash.explorer.model import (
    LEDGER,
    RIGHT,
    CommandLost,
    DatabaseError,
    Rec,
    freeze,
    location_of,
)
from txpool.resources.base import (
    BranchOutcome,
    BranchRecord,
    PrepareLocation,
    PrepareVote,
    Purge,
    Resolution,
)
from txpool.xid import Xid

ANSWERS = {
    "committed": BranchOutcome.COMMITTED,
    "aborted": BranchOutcome.ROLLED_BACK,
    "absent": BranchOutcome.ABSENT,
    "lost": BranchOutcome.LOST,  # and it is another server, or an older state of it
    "in progress": BranchOutcome.UNKNOWN,
    "refused": BranchOutcome.UNKNOWN,  # it belongs to somebody else
}


class Port(Protocol):
    """Where a process's commands go."""

    flaws: frozenset[str]

    def call(self, *command: Any) -> Any:
        """The answer; an exception where there is none, or an error."""


class ExploredReadOnlyCheck:
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


class ExploredBranch:
    """A branch over one session, with the states of PostgreSQL's."""

    idle = False

    def __init__(
        self,
        port: Port,
        datasource: str,
        *,
        evidence: bool,
        xid: Xid | None = None,
        asked: bool = False,
        asks_again: bool = False,
        early: Xid | None = None,
    ) -> None:
        """`xid` is the name of one that is prepared already, and `early` of one that was named when it began."""
        self.datasource = datasource
        self._asks_again = asks_again
        self._asked = asked
        self._port = port
        self._xid = xid or early or Xid("", "")
        self._early = early is not None
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
        return location_of(self.datasource)

    def name(self, xid: Xid) -> None:
        if not self._early:
            self._xid = xid

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("a model hears of no SQL command")

    def read_only_check(self, *, committing: bool) -> ExploredReadOnlyCheck | None:
        return ExploredReadOnlyCheck(self._port, self.datasource) if self._asked else None

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
        if isinstance(self._reply, DatabaseError):
            self._stage = "refused"
        vote = self._receive()
        self._stage, self._evidence = "prepared", self._known
        return PrepareVote(vote)

    def start_commit(self) -> None:
        self._send("commit", self.datasource, self._xid.bqual, self._evidence, True)

    def await_commit(self) -> BranchOutcome:
        if not (self._asks_again and isinstance(self._reply, CommandLost)):
            return ANSWERS[self._receive()]
        self.start_commit()
        outcome = ANSWERS[self._receive()]
        # The first COMMIT has ended what the second does not find.
        forgotten = "forgets what it sent" in self._port.flaws
        return BranchOutcome.COMMITTED if outcome is BranchOutcome.ABSENT and not forgotten else outcome

    def start_rollback(self) -> None:
        if self._stage == "prepared":
            self._send("rollback", self.datasource, self._xid.bqual, self._evidence, True)

    def await_rollback(self) -> BranchOutcome:
        if self._stage == "prepared":
            return ANSWERS[self._receive()]
        if self._stage == "lost":
            answer = ANSWERS[self._port.call("rollback", self.datasource, self._xid.bqual, False, True)]
            return BranchOutcome.UNKNOWN if answer in (BranchOutcome.ABSENT, BranchOutcome.LOST) else answer
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


class ExploredLast:
    """A last resource: the marked database's local transaction, which leaves no mark."""

    idle = False
    datasource = LEDGER

    def __init__(self, port: Port) -> None:
        self._port = port

    def read_only_check(self, *, committing: bool) -> None:
        return None

    def commit_one_phase(self) -> BranchOutcome:
        return _alone(self._port, LEDGER)

    def start_rollback(self) -> None:
        """Nothing: `await_rollback` does the work."""

    def await_rollback(self) -> BranchOutcome:
        return self.rollback()

    def rollback(self) -> BranchOutcome:
        self._port.call("leave", LEDGER)
        return BranchOutcome.ROLLED_BACK


class ExploredMarked:
    """A marked branch: the row in its own local transaction, whose commit is the decision."""

    idle = False
    datasource = LEDGER

    def __init__(self, port: Port, *, asked: bool = False) -> None:
        self._port = port
        self._asked = asked
        self._recs: tuple[Rec, ...] = ()

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("a model hears of no SQL command")

    def commit_one_phase(self) -> BranchOutcome:
        return _alone(self._port, LEDGER)

    def read_only_check(self, *, committing: bool) -> ExploredReadOnlyCheck | None:
        return ExploredReadOnlyCheck(self._port, LEDGER) if self._asked else None

    def identity(self) -> str:
        return RIGHT

    @property
    def location(self) -> PrepareLocation:
        return PrepareLocation(LEDGER, RIGHT)

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        self._recs = freeze(branches)
        if "one message" not in self._port.flaws:
            self._port.call("mark", LEDGER, gtrid, self._recs)

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if "one message" in self._port.flaws:
            self._port.call("both", LEDGER, gtrid, self._recs)
        else:
            recs = self._recs if "unsealed" in self._port.flaws else freeze(branches)
            self._port.call("decide", LEDGER, gtrid, recs)

    def abort(self, gtrid: str) -> Resolution:
        kept = self._port.call("abort", LEDGER, gtrid, self.identity())
        return Resolution.ABORTED if kept is None else Resolution.COMMITTED

    def forget(self, gtrid: str) -> None:
        self._delete(gtrid)

    def forget_pointed(self, gtrid: str, purge: Purge) -> None:
        if self._delete(gtrid):
            with suppress(Exception):  # as the row
                purge([gtrid])

    @property
    def purge(self) -> Purge:
        return lambda _: None

    def is_decided(self, gtrid: str) -> bool:
        raise NotImplementedError  # no branch of the explorer writes a row

    def _delete(self, gtrid: str) -> bool:
        try:
            self._port.call("delete", LEDGER, (gtrid,))
        except Exception:
            return False  # a clean-up queue deletes it another time, or recovery does
        return True

    def rollback(self) -> BranchOutcome:
        self._port.call("leave", LEDGER)
        return BranchOutcome.ROLLED_BACK


def _alone(port: Port, datasource: str) -> BranchOutcome:
    try:
        port.call("alone", datasource)
    except DatabaseError:
        return BranchOutcome.ROLLED_BACK
    except Exception:
        return BranchOutcome.UNKNOWN
    return BranchOutcome.COMMITTED
