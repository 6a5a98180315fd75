"""The real code, one command at a time.

A process is known by the answers it has had: to find its next command, its program runs again from the beginning over
those answers, and is stopped at the first call that has none. From there on every call of it raises `Stopped` and has
no effect, as in a process that is dead. What each history leads to is kept, so the real code runs once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from recovery.manager import RecoveryManager
from recovery.scan.datasources.asking import AskedInTurn
from recovery.scan.modules.expiry import Entry, Expiry, Kind
from recovery.scan.modules.orphans import IncarnationFilter, NodeFilter, TransactionLogFilter
from recovery.scan.modules.transactions import DecidedModule, MarkedModule, OrphanModule
from recovery.scan.report import RepeatFilter, ScanRecorder
from tests.crash.explorer.model import GTRID, LEDGER, RIGHT, Command, ExternalState, LogState, Reply
from tests.crash.explorer.parts import ExploredBranch, ExploredLast, ExploredMarked
from tests.crash.explorer.scenarios import Scenario
from tests.crash.explorer.stores import ModelDataSource, ModelLog, ModelOtherDatasources
from txpool.config.settings import RecoverySettings
from txpool.spark.commit.attempts import earlier_attempt
from txpool.spark.commit.listing import list_attempts
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.request import CommitRequest
from txpool.xid import TaskName, Xid, make_xid

#: Where a process stands that has ended, or is dead.
ENDED, DEAD = -1, -2

_SETTLES = 2


class Stopped(BaseException):
    """The process does nothing any more."""


class Player:
    """A port that answers from a history; `next` is the first command that it has no answer to."""

    def __init__(self, history: tuple[Reply, ...], flaws: frozenset[str]) -> None:
        self.flaws = flaws
        self.next: Command | None = None
        self._history = history
        self._position = 0

    def call(self, *command: Any) -> Any:
        if self._position == len(self._history):
            self.next = self.next or command
            raise Stopped
        reply = self._history[self._position]
        self._position += 1
        return unpack(reply)


def unpack(reply: Reply) -> Any:
    """The answer, or the exception that came instead."""
    if reply[0] == "!":
        raise reply[1](reply[2])
    return reply[1]


class Process:
    """All that one program may do: positions are numbers, and each is a history of answers."""

    def __init__(self, program: Callable[[Any], None], flaws: frozenset[str]) -> None:
        self._program = program
        self._flaws = flaws
        self._histories: list[tuple[Reply, ...]] = [()]
        self._next: list[Command | None] = [self._play(())]
        self._after: dict[tuple[int, Reply], int] = {}

    @property
    def runs(self) -> int:
        """How often the real code has run."""
        return len(self._next)

    def command(self, position: int) -> Command | None:
        """What it does next; None where it has ended."""
        return self._next[position] if position >= 0 else None

    def advance(self, position: int, reply: Reply) -> int:
        """Where it stands after this answer."""
        found = self._after.get((position, reply))
        if found is None:
            history = (*self._histories[position], reply)
            command = self._play(history)
            if command is None:
                found = ENDED
            else:
                found = len(self._next)
                self._histories.append(history)
                self._next.append(command)
            self._after[position, reply] = found
        return found

    def _play(self, history: tuple[Reply, ...]) -> Command | None:
        player = Player(history, self._flaws)
        with suppress(Stopped):
            self._program(player)
        return player.next


def task_xid(scenario: Scenario, name: str) -> Xid:
    """The name under which a task attempt has prepared."""
    number = scenario.names.index(name)
    return make_xid(GTRID, 0, name, task=TaskName(0, number, number + 1, 1))


def first_world(scenario: Scenario) -> ExternalState:
    """The work is done, and commit begins."""
    late: tuple[Command, ...] = ()
    branches = [("open", "") for _ in scenario.opened]
    branches += [("prepared", task_xid(scenario, name).bqual) for name in scenario.adopted]
    if scenario.loser:
        branches.append(("open", ""))
        late = (("prepare", "zombie", task_xid(scenario, "zombie").bqual),)
    log = LogState(locations=frozenset(scenario.noted))
    return ExternalState(tuple(branches), "open" if scenario.marked or scenario.last else "", log=log, late=late)


def forged_names(scenario: Scenario) -> list[tuple[str, str]]:
    """What somebody who owns nothing may prepare, and where: names that say something else than ours, and ours."""
    if not scenario.forges:
        return []
    says = ["L", "M.nosuch", f"M.{LEDGER}"]
    if scenario.marked:
        says += [f"M.{LEDGER}:{RIGHT}", f"M.{LEDGER}:wrong0table0"]
    found = [(place, f"9:{place}:{said}") for place in scenario.names[:2] for said in says]
    # As an attempt that was before ours, and has prepared all that it worked on.
    found += [(name, f"9:{name}:L:0.{scenario.names.index(name)}.0.1") for name in scenario.adopted]
    own = list(own_names(scenario).items())
    elsewhere = [(place, xid) for place, _ in own for name, xid in own if place != name]
    return [*found, *((place, xid.bqual) for place, xid in (*own, *elsewhere))]


def own_names(scenario: Scenario) -> dict[str, Xid]:
    """Under which name each of our branches is prepared."""
    decider, identity = (LEDGER, RIGHT) if scenario.decides else (None, "")
    named = {
        name: make_xid(GTRID, number, name, decider=decider, identity=identity)
        for number, name in enumerate(scenario.opened)
        if name in scenario.writing
    }
    return (
        named | early_names(scenario) | {name: task_xid(scenario, name) for name in scenario.names[scenario.branches :]}
    )


def early_names(scenario: Scenario) -> dict[str, Xid]:
    """The names of those that are named before anybody knows who decides."""
    return {name: make_xid(GTRID, number, name) for number, name in enumerate(scenario.opened[: scenario.early])}


def coordinator_program(scenario: Scenario) -> Callable[[Any], None]:
    """commit(), what is reported of it, and the settling of what is in doubt."""

    def program(port: Any) -> None:
        def known(name: str) -> ExploredBranch:
            xid = _adopted(scenario, port, name) if scenario.retries else task_xid(scenario, name)
            return ExploredBranch(port, name, evidence=scenario.evidence, xid=xid, asks_again=scenario.asks_again)

        unit = CommitRequest(
            GTRID,
            branches=[
                ExploredBranch(
                    port,
                    name,
                    evidence=scenario.evidence,
                    asked=scenario.asked,
                    asks_again=scenario.asks_again,
                    early=early_names(scenario).get(name),
                )
                for name in scenario.opened
            ],
            adopted=[known(name) for name in scenario.adopted],
            marked=ExploredMarked(port, asked=scenario.asked) if scenario.marked else None,
            last=ExploredLast(port) if scenario.last else None,  # type: ignore[arg-type]
            late_branches=scenario.loser,
        )
        coordinator = Coordinator(unit, _log(scenario, port))
        result = coordinator.rollback() if scenario.rolls_back else coordinator.commit()
        port.call("report", result.outcome, result.resolvable)
        for _ in range(_SETTLES):
            if result.complete or not result.resolvable:
                return
            result = coordinator.retry()
            port.call("report", result.outcome, result.resolvable)
        if not result.complete:
            port.call("wait", "")  # the settler would go on, for as long as the process lives

    return program


def _adopted(scenario: Scenario, port: Any, name: str) -> Xid:
    """What a retry of the task finds, and adopts, by the real code."""
    place = ModelDataSource(port, name, _stranger(scenario))
    listing = list_attempts([place], gtrid=GTRID, write=0)  # type: ignore[list-item]
    found = earlier_attempt(listing.attempts, scenario.names.index(name))
    if found is None:
        raise Stopped  # it would do the work again
    (record,) = found.records
    return record.xid


def _stranger(scenario: Scenario) -> frozenset[str]:
    """What a server tells of a branch that is none of ours: the roles that may have prepared it."""
    return frozenset() if scenario.ownerless else frozenset({"mallory"})


def manager_of(scenario: Scenario, port: Any) -> RecoveryManager:
    """A real RecoveryManager over the model."""
    names = [*scenario.names, *([LEDGER] if scenario.marked or scenario.beside else [])]
    places = [ModelDataSource(port, name, _stranger(scenario)) for name in names]
    manager = RecoveryManager(
        _OVERDUE if scenario.overdue else _SETTINGS,
        log=_log(scenario, port),
        datasources=[place for place in places if place.name not in scenario.missing],
        backoff=0,
        scanners=[Eager()] if scenario.expires else [],
    )
    manager._discovered = ModelOtherDatasources(port, places)  # type: ignore[assignment]
    manager._asking = AskedInTurn  # type: ignore[method-assign]  # a model's commands have one order
    return manager


def _log(scenario: Scenario, port: Any) -> ModelLog:
    return ModelLog(port, None if scenario.unnoted else scenario.noted, last=scenario.last, overdue=scenario.overdue)


class Eager:
    """Expires an incarnation as soon as that is possible."""

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        return entry.kind is Kind.INCARNATION


def recovery_program(scenario: Scenario) -> Callable[[Any], None]:
    """One pass, to which every branch is one that the pass before has found: each must be right by itself.

    Where recovery ends what is overdue, a scan of two passes.
    """
    seen = own_names(scenario).values()
    expiry = [Expiry(1.0, [Eager()])] if scenario.expires else []

    def program(port: Any) -> None:
        manager = manager_of(scenario, port)
        if scenario.overdue:
            manager.scan()
            return
        orphans = OrphanModule((IncarnationFilter(), TransactionLogFilter(), NodeFilter()), seen)
        manager._run_pass(
            _log(scenario, port), ScanRecorder(RepeatFilter()), (MarkedModule(), DecidedModule(), orphans, *expiry)
        )

    return program


def operator_program(scenario: Scenario) -> Callable[[Any], None]:
    """`txpool-recovery rollback`, which is refused where it is decided, or `commit`, which is where it is not."""

    def program(port: Any) -> None:
        with suppress(Exception):  # it is refused, or something fails: a person hears it
            getattr(manager_of(scenario, port), scenario.operator)(GTRID)

    return program


_SETTINGS = RecoverySettings.load(None)
_OVERDUE = RecoverySettings.load(None, recovery_overdue_rollback=1)
