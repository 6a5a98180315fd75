"""The real code, one command at a time.

A process is known by the answers it has had: to find its next command, its program runs again from the beginning over
those answers, and is stopped at the first call that has none. From there on every call of it raises `Stopped` and has
no effect, as in a process that is dead. What each history leads to is kept, so the real code runs once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from recovery.expiry import Entry, Expiry, Kind
from recovery.manager import RecoveryManager
from recovery.modules import DecidedModule, MarkedModule, OrphanModule
from recovery.orphans import IncarnationFilter, NodeFilter, TransactionLogFilter
from recovery.report import Account, News
from tests.crash.explorer.parts import ModelBranch, ModelDataSource, ModelLog, ModelMarked
from tests.crash.explorer.scenarios import Scenario
from tests.crash.explorer.world import GTRID, LEDGER, RIGHT, Command, LogState, Reply, World
from txpool.coordinator import Coordinator
from txpool.settings import RecoverySettings
from txpool.unit import Unit
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
    return make_xid(GTRID, 0, name, task=TaskName(0, number, number, 1))


def first_world(scenario: Scenario) -> World:
    """The work is done, and commit begins."""
    late: tuple[Command, ...] = ()
    branches = [("open", "") for _ in scenario.opened]
    branches += [("prepared", task_xid(scenario, name).bqual) for name in scenario.adopted]
    if scenario.loser:
        branches.append(("open", ""))
        late = (("prepare", "zombie", task_xid(scenario, "zombie").bqual),)
    return World(tuple(branches), "open" if scenario.marked else "", log=LogState(), late=late)


def coordinator_program(scenario: Scenario) -> Callable[[Any], None]:
    """commit(), what is reported of it, and the settling of what is in doubt."""

    def program(port: Any) -> None:
        def known(name: str) -> ModelBranch:
            return ModelBranch(port, name, evidence=scenario.evidence, xid=task_xid(scenario, name))

        unit = Unit(
            GTRID,
            branches=[ModelBranch(port, name, evidence=scenario.evidence) for name in scenario.opened],
            adopted=[known(name) for name in scenario.adopted],
            marked=ModelMarked(port) if scenario.marked else None,
            loose_ends=scenario.loser,
        )
        coordinator = Coordinator(unit, ModelLog(port))
        result = coordinator.rollback() if scenario.rolls_back else coordinator.commit()
        port.call("report", result.outcome, result.knowable)
        for _ in range(_SETTLES):
            if result.settled or not result.knowable:
                return
            result = coordinator.settle()
            port.call("report", result.outcome, result.knowable)
        if not result.settled:
            port.call("wait", "")  # the settler would go on, for as long as the process lives

    return program


def manager_of(scenario: Scenario, port: Any) -> RecoveryManager:
    """A real RecoveryManager over the model."""
    places = [*scenario.names, *([LEDGER] if scenario.marked else [])]
    return RecoveryManager(
        _SETTINGS,
        log=ModelLog(port),
        datasources=[ModelDataSource(port, name) for name in places],
        backoff=0,
        scanners=[Eager()] if scenario.expires else [],
    )


class Eager:
    """Expires an incarnation as soon as that is possible."""

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        return entry.kind is Kind.INCARNATION


def recovery_program(scenario: Scenario) -> Callable[[Any], None]:
    """One pass, to which every branch is one that the pass before has found: each must be right by itself."""
    decider, identity = (LEDGER, RIGHT) if scenario.marked else (None, "")
    seen = [
        make_xid(GTRID, number, name, decider=decider, identity=identity) for number, name in enumerate(scenario.opened)
    ]
    seen += [task_xid(scenario, name) for name in scenario.names[scenario.branches :]]

    expiry = [Expiry(1.0, [Eager()])] if scenario.expires else []

    def program(port: Any) -> None:
        manager = manager_of(scenario, port)
        orphans = OrphanModule((IncarnationFilter(), TransactionLogFilter(), NodeFilter()), seen)
        manager._pass(ModelLog(port), Account(News()), (MarkedModule(), DecidedModule(), orphans, *expiry))

    return program


def operator_program(scenario: Scenario) -> Callable[[Any], None]:
    """`txpool-recovery rollback`, which is refused where it is decided, or `commit`, which is where it is not."""

    def program(port: Any) -> None:
        with suppress(Exception):  # it is refused, or something fails: a person hears it
            getattr(manager_of(scenario, port), scenario.operator)(GTRID)

    return program


_SETTINGS = RecoverySettings.load(None)
