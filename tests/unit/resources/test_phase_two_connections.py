"""Many branches over a few connections, against a model of a server: interrupts, lost sessions, one that hangs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from tests.crash.evidence import SEED
from tests.support.interrupts import at_each_check, codes_of
from txpool.errors import OperationalError
from txpool.resources.base import Branch, BranchOutcome, BranchRecord, MarkedBranch
from txpool.resources.branches import adopted, phase_two
from txpool.resources.branches.adopted import PhaseTwoConnections
from txpool.resources.branches.phase_two import DONE, PhaseTwoCommand, PhaseTwoReply, ReplyKind
from txpool.resources.deadlines import Deadlines, ReplyTimeout
from txpool.tm.commit.split_phase import await_each, start_each
from txpool.xid import make_gtrid, make_xid

COMMITTED, UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.UNKNOWN
#: How many places are struck in a default run.
SOME = 40
GTRID = make_gtrid("tests", "abcdefghijkl", 1)


class Session:
    """A session of the model; a command is executed as it is sent."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.open = True
        self.hangs = False
        self.answer: PhaseTwoReply | None = None

    def send(self, xid: str) -> None:
        assert self.answer is None, "one command at a time"
        if not self.open:
            raise OperationalError("the connection is lost")
        gone = xid not in self.server.prepared
        self.server.prepared.discard(xid)
        self.server.busiest = max(
            self.server.busiest, sum(each.answer is not None for each in self.server.sessions) + 1
        )
        self.answer = PhaseTwoReply(ReplyKind.GONE, "no such branch") if gone else DONE

    def receive(self) -> PhaseTwoReply:
        if self.hangs:
            raise ReplyTimeout("the server has not answered in time")
        answer, self.answer = self.answer, None
        if answer is None or not self.open:
            raise OperationalError("the answer was lost")
        return answer


class Server:
    """A driver of the model. It opens so many connections, and refuses more."""

    def __init__(self, prepared: set[str], connections: int, most: int = 1_000_000) -> None:
        self.phase_two_connections = connections
        self.prepared = prepared
        self.most = most
        self.sessions: list[Session] = []
        self.opened = self.busiest = 0
        self.hanging: set[int] = set()

    def connect(self, timeout: float | None = None) -> Session:
        if len(self.sessions) >= self.most:
            raise OperationalError("too many clients")
        session = Session(self)
        session.hangs = self.opened in self.hanging
        self.opened += 1
        self.sessions.append(session)
        return session

    def close(self, raw: Session) -> None:
        raw.open = False
        if raw in self.sessions:
            self.sessions.remove(raw)


class Command(PhaseTwoCommand):
    @staticmethod
    def can_send(raw: Any) -> bool:
        return bool(raw.open and raw.answer is None)

    def _send(self, raw: Any) -> None:
        raw.send(self._record.xid.joined)

    def _receive(self, raw: Any) -> PhaseTwoReply:
        reply: PhaseTwoReply = raw.receive()
        return reply

    def _identity(self, raw: Any) -> str:
        return "here"

    def _is_same_generation(self, raw: Any) -> bool:
        return True

    def _why_unproven(self) -> str:
        return ""


class World:
    def __init__(self, count: int, connections: int, most: int = 1_000_000, deadlines: Deadlines | None = None) -> None:
        records = [BranchRecord(make_xid(GTRID, number, "one"), "one", "here") for number in range(count)]
        self.server = Server({each.xid.joined for each in records}, connections, most)
        self.shared = PhaseTwoConnections(Command, self.server, deadlines or Deadlines())  # type: ignore[arg-type]
        self.branches: list[Branch] = [self.shared.branch(record) for record in records]
        self.errors: list[BaseException] = []

    def commit(self, failed: Callable[[BaseException], object] = lambda _: None) -> list[BranchOutcome]:
        """The outcomes, as the coordinator notes them."""
        outcomes: dict[Branch | MarkedBranch, BranchOutcome] = dict.fromkeys(self.branches, UNKNOWN)

        def note(error: BaseException) -> None:
            self.errors.append(error)
            failed(error)

        await_each(start_each(self.branches, COMMITTED, note), COMMITTED, outcomes, note)
        return list(outcomes.values())


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted, "BRANCHES_EACH", 1)


@pytest.mark.parametrize(("connections", "most"), [(1, 9), (3, 9), (8, 3), (8, 1)])
def test_each_connection_has_one_command_on_its_way(connections: int, most: int) -> None:
    world = World(20, connections, most)
    assert world.commit() == [COMMITTED] * 20
    assert world.server.busiest == world.server.opened == min(connections, most)
    assert not world.server.sessions
    assert not world.errors


def test_a_few_branches_need_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted, "BRANCHES_EACH", 16)
    world = World(17, 8)
    assert world.commit() == [COMMITTED] * 17
    assert world.server.opened == 1


@pytest.mark.parametrize("hanging", [{0}, {1}, {2}, {0, 2}])
def test_a_connection_on_which_the_server_hangs_keeps_its_own_branch_only(hanging: set[int]) -> None:
    world = World(12, 3, deadlines=Deadlines(None, 0.0))
    world.server.hanging = hanging
    outcomes = world.commit()
    assert outcomes.count(UNKNOWN) == len(hanging)
    assert world.server.opened == 3
    assert not world.server.sessions


def test_where_the_server_hangs_on_all_nothing_is_opened_any_more() -> None:
    world = World(12, 3, deadlines=Deadlines(None, 0.0))
    world.server.hanging = set(range(100))
    assert world.commit() == [UNKNOWN] * 12
    assert world.server.opened == 3


def test_a_further_connection_whose_session_hangs_holds_up_no_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(12, 3)
    given: list[float | None] = []

    def begin_session(raw: Session, until: float | None) -> None:
        given.append(until)
        if len(given) > 1:
            raise ReplyTimeout("the server has not answered in time")

    monkeypatch.setattr(Command, "begin_session", staticmethod(begin_session))
    assert world.commit() == [COMMITTED] * 12
    first, *others = given
    assert first is None  # for ever, as the transaction waits
    assert len(others) == 1
    assert None not in others
    assert not world.server.sessions


def test_lost_connections_are_replaced() -> None:
    world = World(12, 3)
    for branch in world.branches:
        branch.start_commit()
    for session in world.server.sessions:
        session.open = False
    assert [branch.await_commit() for branch in world.branches] == [COMMITTED] * 12
    assert not world.server.prepared
    assert not world.server.sessions


def struck(*places: int) -> int:
    """A commit that is interrupted at these of its places; how many it has passed."""
    world = World(7, 3)
    passed = 0
    watching = ExitStack()

    def strike(frame: FrameType) -> None:
        nonlocal passed
        passed += 1
        if passed in places:
            raise KeyboardInterrupt

    def watch(error: BaseException | None = None) -> None:  # again, since a function that has raised is called no more
        watching.close()
        watching.enter_context(at_each_check(codes_of(adopted) | codes_of(phase_two), strike))

    with watching:
        watch()
        outcomes = world.commit(watch)
    interrupts = sum(place <= passed for place in places)
    assert all(isinstance(error, KeyboardInterrupt) for error in world.errors)
    assert min(1, interrupts) <= len(world.errors) <= interrupts, places  # one may come as another is on its way
    assert set(outcomes) <= {COMMITTED, UNKNOWN}, places
    assert outcomes.count(UNKNOWN) <= interrupts, places
    known = zip(world.branches, outcomes, strict=True)
    said = [each.record.xid.joined for each, outcome in known if outcome is COMMITTED]
    assert world.server.prepared.isdisjoint(said), places
    world.shared.close()
    assert len(world.server.sessions) <= interrupts, places  # one that was being opened or closed
    return passed


@pytest.mark.parametrize("apart", [None, 1, 7])
def test_an_interrupt_anywhere_keeps_one_answer_at_most(apart: int | None) -> None:
    passed = struck()
    assert passed > 100
    places: Sequence[int] = range(1, passed + 1)
    if not os.environ.get("TXPOOL_CRASH_FULL"):
        print(f"seed {SEED}")
        places = random.Random(f"{SEED} {apart}").sample(places, SOME)
    for place in places:
        struck(place, *(() if apart is None else (place + apart,)))


def test_a_command_that_was_never_sent_does_not_make_another_one_its_repetition() -> None:
    """Somebody else has ended the branch: ABSENT, wherever the first start was interrupted before it sent anything."""

    def absent(place: int) -> bool:
        """Whether the start was interrupted at this place of it, before it sent anything."""
        world = World(1, 1)
        (branch,) = world.branches
        passed = 0

        def strike(_: FrameType) -> None:
            nonlocal passed
            passed += 1
            if passed == place:
                raise KeyboardInterrupt

        codes = codes_of(adopted) | codes_of(phase_two)
        interrupted = False
        try:
            with at_each_check(codes, strike):
                branch.start_commit()
        except KeyboardInterrupt:
            interrupted = True
        sent = any(each.answer is not None for each in world.server.sessions)
        if not interrupted or sent:
            return False
        world.server.prepared.clear()
        branch.start_commit()
        assert branch.await_commit() is BranchOutcome.ABSENT, place
        return True

    places = 0
    while absent(places + 1):
        places += 1
    assert places > 5


def test_what_was_answered_absent_is_absent_however_often_it_is_asked() -> None:
    world = World(1, 1)
    (branch,) = world.branches
    world.server.prepared.clear()
    for _ in range(2):
        branch.start_commit()
        assert branch.await_commit() is BranchOutcome.ABSENT
    branch.start_commit()
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.ABSENT


def test_what_was_committed_by_a_command_whose_answer_nobody_took_has_committed() -> None:
    world = World(1, 1)
    (branch,) = world.branches
    branch.start_commit()
    branch.start_commit()
    assert branch.await_commit() is COMMITTED


def test_the_time_for_sessions_that_hold_branches_begins_with_the_first_of_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind one that is gone, which no session holds."""
    now, held = 0.0, ""

    def sleep(seconds: float) -> None:
        nonlocal now, held
        now, held = now + seconds, ""

    class Holding(Command):
        def _send(self, raw: Any) -> None:
            if self._record.xid.joined == held:
                raw.answer = PhaseTwoReply(ReplyKind.GONE, "a session holds it")
            else:
                super()._send(raw)

        def _is_listed(self, raw: Any) -> bool:
            return self._record.xid.joined in raw.server.prepared

    monkeypatch.setattr(phase_two, "monotonic", lambda: now)
    monkeypatch.setattr("txpool.loops.sleep", sleep)
    world = World(2, 1)
    world.shared._command = Holding
    gone, last = world.branches
    held = last.record.xid.joined
    world.server.prepared.remove(gone.record.xid.joined)
    for branch in world.branches:
        branch.start_commit()
    assert gone.await_commit() is BranchOutcome.ABSENT
    now += 2 * phase_two._RELEASE_WAIT
    assert last.await_commit() is COMMITTED
