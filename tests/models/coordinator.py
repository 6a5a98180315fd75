"""A transaction over a model of branches and of the log, in which any call may fail; and the invariants of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txpool.log.base import Decision, IncarnationState
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, PrepareVote, Purge, Refused, Resolution
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.phase import Phase
from txpool.tm.commit.request import CommitRequest, Outcome, Result
from txpool.xid import TaskName, Xid, make_gtrid, make_xid


class ConnectionLost(Exception):
    """What a cut connection looks like."""


@dataclass
class FailingCalls:
    """Which calls fail, by their number; counts the calls, so that a sweep knows where it ends."""

    plan: dict[int, tuple[str, type[BaseException]]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    raised: list[type[BaseException]] = field(default_factory=list)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)

    def around(self, name: str, effect: Callable[[], Any]) -> Any:
        self.before.get(name, lambda: None)()
        number = len(self.calls)
        self.calls.append(name)
        when, error = self.plan.get(number, ("", ConnectionLost))
        if when == "before":
            self._raise(error, f"before {name}")
        result = effect()
        if when == "after":
            self._raise(error, f"after {name}")
        return result

    def _raise(self, error: type[BaseException], where: str) -> None:
        self.raised.append(error)
        raise error(where)


class ModelReadOnlyCheck:
    """The question to a part, and the end of one that has only read."""

    def __init__(self, part: ModelBranch | ModelMarked) -> None:
        self.datasource = part.datasource
        self._part = part

    def start_asking(self) -> None:
        self._part._call("start_asking", lambda: None)

    def await_answer(self) -> bool:
        return self._part._call("await_answer", lambda: self._part.reads)  # type: ignore[no-any-return]

    def require_alive(self) -> None:
        self._part._call("require_alive", lambda: None)

    def start_commit(self) -> None:
        def effect() -> None:
            assert self._part.may_end(), "a reader ends before what is decided"
            self._part.state = "committed"

        self._part._call("reader_start_commit", effect)

    def await_commit(self) -> None:
        self._part._call("reader_await_commit", lambda: None)

    def drop(self) -> None:
        if self._part.state == "open":
            self._part.state = "rolled back"


class ModelBranch:
    """A branch in a database that keeps its word, over a connection that may not."""

    idle = False

    def __init__(self, faults: FailingCalls, datasource: str, vote: PrepareVote | None = PrepareVote.COMMIT) -> None:
        self.faults = faults
        self.datasource = datasource
        self.vote = vote
        self.asked = self.reads = self.early = False
        self.may_end: Callable[[], bool] = lambda: True
        self.state = "open"
        self.reachable = True
        self.ended_by_others = False
        self.identity = f"server-of-{datasource}"
        self.record = BranchRecord(Xid("", ""), datasource, self.identity)

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        return self.faults.around(f"{self.datasource}.{name}", effect)

    def name(self, xid: Xid) -> None:
        if not self.early:
            self.record = BranchRecord(xid, self.datasource, self.identity)

    @property
    def location(self) -> PrepareLocation:
        return PrepareLocation(self.datasource)

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("a model hears of no SQL command")

    def read_only_check(self, *, committing: bool) -> ModelReadOnlyCheck | None:
        return ModelReadOnlyCheck(self) if self.asked else None

    def rollback(self) -> BranchOutcome:
        return self._call("rollback", lambda: self._end("rolled back", BranchOutcome.ROLLED_BACK))  # type: ignore[no-any-return]

    def start_prepare(self) -> None:
        assert not self.reads, "a reader is prepared"
        self._call("start_prepare", lambda: None)

    def await_prepare(self) -> PrepareVote:
        def effect() -> PrepareVote:
            if self.vote is None:
                self.state = "rolled back"
                raise ConnectionLost("a vote to roll back")
            if self.vote is PrepareVote.COMMIT:
                self.state = "prepared"
            return self.vote

        return self._call("await_prepare", effect)  # type: ignore[no-any-return]

    def start_commit(self) -> None:
        self._call("start_commit", lambda: None)

    def await_commit(self) -> BranchOutcome:
        return self._call("await_commit", lambda: self._end_prepared("committed", BranchOutcome.COMMITTED))  # type: ignore[no-any-return]

    def start_rollback(self) -> None:
        self._call("start_rollback", lambda: None)

    def await_rollback(self) -> BranchOutcome:
        return self._call("await_rollback", lambda: self._end_prepared("rolled back", BranchOutcome.ROLLED_BACK))  # type: ignore[no-any-return]

    def commit_one_phase(self) -> BranchOutcome:
        return self._call("commit_one_phase", lambda: self._end("committed", BranchOutcome.COMMITTED))  # type: ignore[no-any-return]

    def _end(self, state: str, answer: BranchOutcome) -> BranchOutcome:
        self.state = state
        return answer

    def _end_prepared(self, state: str, answer: BranchOutcome) -> BranchOutcome:
        """Where somebody else has ended it, nothing shows how."""
        return BranchOutcome.ABSENT if self.ended_by_others else self._end(state, answer)


class ModelMarked:
    """A marked branch: its row is written in its own local transaction, whose commit is the decision."""

    idle = False

    def __init__(self, faults: FailingCalls) -> None:
        self.faults = faults
        self.datasource = "ledger"
        self.asked = self.reads = False
        self.may_end: Callable[[], bool] = lambda: True
        self.row: str | None = None  # None, "open", "committed", "tombstone"
        self.state = "open"

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        return self.faults.around(f"ledger.{name}", effect)

    def ended_by_sql(self, command: str) -> None:
        raise AssertionError("a model hears of no SQL command")

    def read_only_check(self, *, committing: bool) -> ModelReadOnlyCheck | None:
        return ModelReadOnlyCheck(self) if self.asked else None

    def identity(self) -> str:
        assert not self.reads, "a reader is marked"
        return "1" * 12

    @property
    def location(self) -> PrepareLocation:
        return PrepareLocation(self.datasource, self.identity())

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        def effect() -> None:
            self.row = "open"

        self._call("mark", effect)

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        def effect() -> None:
            if self.row == "tombstone":
                raise Refused("the tombstone was first")
            self.row, self.state = "committed", "committed"

        self._call("record", effect)

    def abort(self, gtrid: str) -> Resolution:
        def effect() -> Resolution:
            if self.row == "committed":
                return Resolution.COMMITTED
            self.row, self.state = "tombstone", "rolled back"
            return Resolution.ABORTED

        return self._call("abort", effect)  # type: ignore[no-any-return]

    def forget(self, gtrid: str) -> None:
        self.row = None

    def forget_pointed(self, gtrid: str, purge: Purge) -> None:
        self._call("forget_pointed", lambda: None)
        self.row = None
        purge([gtrid])

    @property
    def purge(self) -> Purge:
        return lambda _: None

    def is_decided(self, gtrid: str) -> bool:
        return self.row == "committed"

    def rollback(self) -> BranchOutcome:
        def effect() -> BranchOutcome:
            self.state = "rolled back"
            return BranchOutcome.ROLLED_BACK

        return self._call("rollback", effect)  # type: ignore[no-any-return]

    def commit_one_phase(self) -> BranchOutcome:
        def effect() -> BranchOutcome:
            self.state = "committed"
            return BranchOutcome.COMMITTED

        return self._call("commit_one_phase", effect)  # type: ignore[no-any-return]


#: The log's calls that may fail.
_FALLIBLE = {"record", "abort", "point", "purge", "finish", "is_fenced", "note_location", "note_timeout"}
_FALLIBLE |= {"note_last", "abort_noted"}


class FaultyLog:
    """The memory store, reached over something that may fail."""

    def __init__(self, log: MemoryLog, faults: FailingCalls) -> None:
        self._log = log
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if name not in _FALLIBLE:
            return found
        return lambda *arguments: self._faults.around(f"log.{name}", lambda: found(*arguments))


@dataclass
class CoordinatorWorld:
    """One transaction over some branches, and what became of it."""

    branches: int
    marked: bool = False
    last: bool = False
    adopted: int = 0
    #: The first so many branches are named before their first statement, for the log as the decider.
    early: int = 0
    late_branches: bool = False
    votes: dict[int, PrepareVote | None] = field(default_factory=dict)
    #: Which are asked whether they have only read, and which have; -1 is the marked one.
    asked: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    #: Those in which nothing was executed.
    idle: tuple[int, ...] = ()
    #: The places of enlistment that something else has.
    others: tuple[int, ...] = ()

    def run(
        self,
        plan: dict[int, tuple[str, type[BaseException]]],
        *,
        fenced_at: str = "",
        beside: Mapping[str, Callable[[], None]] | None = None,
        watch: Callable[[Phase], object] | None = None,
    ) -> None:
        """`beside` is what others do just before a call."""
        self.faults = FailingCalls(plan, before={fenced_at: self.fence, **(beside or {})})
        self.disk = MemoryDisk("node")
        log = MemoryLog(self.disk, node="node")
        self.gtrid = make_gtrid("node", log.incarnation, 1)
        votes = [self.votes.get(number, PrepareVote.COMMIT) for number in range(self.branches)]
        self.new = [ModelBranch(self.faults, f"db{number}", vote) for number, vote in enumerate(votes)]
        self.old = [ModelBranch(self.faults, f"task{number}") for number in range(self.adopted)]
        for number, branch in enumerate(self.new[: self.early]):
            branch.name(make_xid(self.gtrid, number, branch.datasource))
            branch.early = True
        for number, branch in enumerate(self.old):
            branch.name(make_xid(self.gtrid, 0, branch.datasource, task=TaskName(0, number, number, 1)))
            branch.state = "prepared"
        self.ledger = ModelMarked(self.faults) if self.marked else None
        self.last_resource = ModelBranch(self.faults, "last") if self.last else None
        numbered: dict[int, ModelBranch | ModelMarked] = dict(enumerate(self.new)) | (
            {-1: self.ledger} if self.ledger else {}
        )
        for number, part in numbered.items():
            part.reads = number in self.reads
            part.asked = part.reads or number in self.asked
            part.may_end = self._nothing_can_change
            part.idle = number in self.idle
        branches: list[Any] = [*self.new]
        for place in self.others:
            branches.insert(place, None)
        unit = CommitRequest(
            self.gtrid,
            branches=branches,
            adopted=self.old,
            marked=self.ledger,
            last=self.last_resource,
            late_branches=self.late_branches,
        )
        self.coordinator = Coordinator(unit, FaultyLog(log, self.faults), watch)
        self.result: Result = self.coordinator.commit()

    def fence(self) -> None:
        """What recovery does to an incarnation that it takes for dead."""
        for incarnation in self.disk.states:
            self.disk.states[incarnation] = IncarnationState.FENCED

    def end(self, number: int, state: str) -> None:
        """Somebody else ends the branch of this number."""
        branch = self.new[number]
        branch.state, branch.ended_by_others = state, True

    @property
    def readers(self) -> list[ModelBranch | ModelMarked]:
        return [part for part in (*self.new, self.ledger) if part is not None and part.reads]

    def _nothing_can_change(self) -> bool:
        """The decision is durable, or the only one that has written anything has committed, or none has."""
        wrote = [part for part in (*self.new, *self.old, self.ledger) if part is not None and part not in self.readers]
        return self.decided or {part.state for part in wrote} <= {"committed"}

    @property
    def decided(self) -> bool:
        if self.ledger is not None and not self.ledger.reads:
            return self.ledger.row == "committed"
        return isinstance(self.disk.outcomes.get(self.gtrid), Decision)

    def check(self) -> None:
        everyone = [*self.new, *self.old]
        states = [part.state for part in (*everyone, self.ledger) if part is not None and part not in self.readers]
        outcome = self.result.outcome
        for reader in self.readers if len(self.new) + len(self.old) + self.marked > 1 else ():
            undone = [f"{reader.datasource}.{step}" for step in ("rollback", "start_rollback", "await_rollback")]
            assert reader.state != "open" or any(map(self._failed, undone)), "a reader stays open"
            assert reader.state != "committed" or outcome is Outcome.COMMITTED, "a reader ended before the others"
        assert not {"committed", "rolled back"} <= set(states) or None in self.votes.values(), "a mix of outcomes"
        everyone = [branch for branch in everyone if branch not in self.readers]
        if outcome is Outcome.COMMITTED:
            assert "rolled back" not in states
            left = [branch for branch in everyone if branch.state == "prepared"]
            assert not left or self.decided, "success was reported and nothing stands for it"
            assert not left or self.gtrid in self.disk.finished or self._failed("log.finish")
        elif outcome is Outcome.ROLLED_BACK:
            assert "committed" not in states
            assert not self.decided, "rollback was reported and the decision stands"
            left = [branch for branch in everyone if branch.state == "prepared"]
            assert not left or self.gtrid in self.disk.finished or self._failed("log.finish")
        else:
            assert outcome is Outcome.IN_DOUBT
            if self.result.resolvable:
                assert not {"committed", "rolled back"} & {branch.state for branch in everyone}
                assert self.gtrid not in self.disk.finished, "in doubt, and marked finished"
        if self.gtrid in self.disk.pointers and outcome is not Outcome.IN_DOUBT:
            failed = any(map(self._failed, ("log.point", "log.purge", "log.finish", "ledger.forget_pointed")))
            assert failed or self.gtrid in self.disk.finished, "a pointer stays behind, and nobody will ask for it"
        interrupted = KeyboardInterrupt in self.faults.raised
        assert (self.result.interrupt is not None) == interrupted, "an interrupt was swallowed, or made up"

    def _failed(self, call: str) -> bool:
        return any(n < len(self.faults.calls) and self.faults.calls[n] == call for n in self.faults.plan)
