"""The search: breadth first over every interleaving of the processes and every fate of every command.

A state is the world, where each process stands, what may still go wrong, and what was reported. In every state
everything that lives may die at once: `final_check` says what becomes of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.explorer.actors import (
    DEAD,
    ENDED,
    Process,
    coordinator_program,
    first_world,
    forged_names,
    operator_program,
    recovery_program,
)
from tests.crash.explorer.final_check import FinalCheck, kill, land
from tests.crash.explorer.model import INCARNATION, LEDGER, Command, CommandLost, ExternalState, Reply, Transitions
from tests.crash.explorer.scenarios import Scenario
from txpool.log.base import IncarnationState
from txpool.resources.base import Refused
from txpool.tm.commit.request import Outcome

#: Fates other than "ok" that a command may have, by its verb; what is not here is only ever executed and answered.
_UNKNOWN = ("reply-lost", "lost", "late")
_COORDINATORS = {
    **dict.fromkeys(("prepare", "commit", "rollback", "alone", "mark", "decide", "both", "abort"), _UNKNOWN),
    **dict.fromkeys(("record", "insert", "finish", "point", "purge", "note_location"), _UNKNOWN),
    **dict.fromkeys(("note_last", "abort_noted"), _UNKNOWN),
    **dict.fromkeys(("is_fenced", "decisions", "ask"), ("lost",)),
    "delete": ("late",),
}
_RECOVERYS = {
    **dict.fromkeys(("commit", "rollback", "tombstone", "fence", "purge", "delete", "forget", "expire"), _UNKNOWN),
    **dict.fromkeys(("list", "rows", "reach"), ("lost",)),
    **dict.fromkeys(("abort", "abort_noted"), _UNKNOWN),
}
#: What nobody else's doing bears upon, and nobody sees: no other process need run in between.
_INTERNAL = frozenset({"heuristics", "report"})
#: What meets a branch that is prepared.
_NAMES_A_BRANCH = frozenset({"list", "prepare", "commit", "rollback"})


class FaultBudget(NamedTuple):
    """What may still go wrong."""

    fates: int
    crashes: int
    leases: int
    cuts: int
    wrong_urls: int
    forges: int
    failovers: int = 0


class State(NamedTuple):
    """A node of the search. Positions are the coordinator's and the recoverers'."""

    world: ExternalState
    positions: tuple[int, ...]
    faults: FaultBudget
    reported: Outcome | None


#: What is chosen in a state: "C.late" (who, and the fate of its next command), "land0", "crash", "lease", "cut.orders".
Step = tuple[str, State]


@dataclass
class Finding:
    """The result of a search; `problem` is empty where no violation was found."""

    scenario: Scenario
    states: int = 0
    steps: int = 0
    runs: int = 0
    worlds: int = 0
    seconds: float = 0.0
    complete: bool = False
    problem: str = ""
    choices: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        bound = "all" if self.complete else "the first"
        return (
            f"{self.scenario.name}: {bound} {self.states} states, {self.steps} steps, {self.worlds} ends checked, "
            f"{self.runs} runs of the real code, {self.seconds:.1f} s"
        )


class Explorer:
    """The search over one scenario; the real code is what it is when the explorer is made."""

    def __init__(self, scenario: Scenario, flaws: frozenset[str] = frozenset()) -> None:
        self.scenario = scenario
        self.transitions = Transitions(
            scenario.names,
            frozenset(scenario.opened[: scenario.abstaining]),
            reading=scenario.reading,
            holds=scenario.holds,
            flaws=flaws,
            superuser=scenario.superuser,
        )
        self.final_check = FinalCheck(scenario, self.transitions)
        recovery = Process(recovery_program(scenario), flaws)
        self.processes = [Process(coordinator_program(scenario), flaws), *[recovery] * scenario.recoverers]
        self.names = ["C", *[f"R{number + 1}" for number in range(scenario.recoverers)]]
        if scenario.operator:
            self.processes.append(Process(operator_program(scenario), flaws))
            self.names.append("O")
        self._forged = forged_names(scenario)
        faults = FaultBudget(*(getattr(scenario, kind) for kind in FaultBudget._fields))
        self.first = State(first_world(scenario), (0,) * len(self.processes), faults, None)

    def search(self, limit: int, wanted: str = "") -> Finding:
        """Breadth first, so that the first violation (with this text in it) has the shortest trace.

        It stops at `limit` states.
        """
        begun = time.perf_counter()
        finding = Finding(self.scenario)
        states, parents = [self.first], [(-1, "")]
        numbers = {self.first: 0}
        position = 0
        while position < len(states) and not finding.problem:
            state = states[position]
            problem = self.problem(state)
            if problem and wanted in problem:
                finding.problem = problem
                finding.choices = _choices(parents, position)
            elif len(states) < limit:
                for choice, following in self.steps(state):
                    finding.steps += 1
                    if numbers.setdefault(following, len(states)) == len(states):
                        states.append(following)
                        parents.append((position, choice))
            position += 1
        finding.states = len(states)
        finding.complete = len(states) < limit and not finding.problem
        finding.runs = sum(process.runs for process in set(self.processes))
        finding.worlds = self.final_check.worlds
        finding.seconds = time.perf_counter() - begun
        return finding

    def problem(self, state: State) -> str:
        """What is wrong if everything that runs dies here."""
        return self.final_check.problem(state.world, state.positions[0], state.reported)

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        for who in range(len(self.processes)):
            yield from self._process_steps(state, who)
        yield from self._events(state)

    def _process_steps(self, state: State, who: int) -> Iterator[Step]:
        command = self.processes[who].command(state.positions[who])
        name = self.names[who]
        if (
            command is None
            or command[0] == "wait"
            or (name == "R2" and state.positions[who] == 0 and state.positions[who - 1] == 0)
        ):
            return  # one of two recoverers that are the same begins first
        after, reply = self.transitions.apply(state.world, command)
        yield f"{name}.ok", self._advance(state, who, after, reply)
        if self.scenario.disk and reply[0] == "=":
            yield from self._disk_steps(state, who, command, after)
        if not state.faults.fates:
            return
        charged = state._replace(faults=state.faults._replace(fates=state.faults.fates - 1))
        lost = KeyboardInterrupt if self.scenario.interrupts and who == 0 else CommandLost
        silence: Reply = ("!", lost, "no reply")
        for fate in (_RECOVERYS if who else _COORDINATORS).get(command[0], ()):
            if fate == "lost":
                yield f"{name}.lost", self._advance(charged, who, self._never(state.world, command, who), silence)
            elif fate == "reply-lost" and reply[0] == "=":
                yield f"{name}.reply-lost", self._advance(charged, who, after, silence)
            elif fate == "late":
                late = state.world._replace(late=tuple(sorted((*state.world.late, command), key=repr)))
                # What a process deletes lazily is no error to it.
                told: Reply = ("=", None) if who == 0 and command[0] == "delete" else silence
                yield f"{name}.late", self._advance(charged, who, late, told)
        if self.scenario.refusals and command[0] == "record":
            yield f"{name}.no", self._advance(charged, who, state.world, ("!", Refused, "the disk is full"))
        if self.scenario.refusals and command[0] in ("prepare", "alone") and reply[0] == "=" and command[1] != LEDGER:
            refused, no = self.transitions._refuse(state.world, command[1])
            answer = reply if "false yes" in self.transitions.flaws else no
            yield f"{name}.no", self._advance(charged, who, refused, answer)

    def _forge_steps(self, state: State) -> Iterator[Step]:
        """Somebody who owns nothing prepares under a name that says something to us.

        It bears upon nothing before somebody lists that database, or says that name there: it is done right before
        that, or at the end.
        """
        left = state.faults.forges - 1
        commands = (process.command(at) for process, at in zip(self.processes, state.positions, strict=True))
        told = [command for command in (*filter(None, commands), *state.world.late) if command[0] in _NAMES_A_BRANCH]
        over = (ENDED if state.positions[0] == ENDED else DEAD, *[DEAD] * (len(state.positions) - 1))
        for place, bqual in self._forged:
            after = self.transitions.forge(state.world, place, bqual)
            if after is None:
                continue
            if any(where == place and (verb == "list" or rest[0] == bqual) for verb, where, *rest in told):
                yield f"forge.{bqual}@{place}", state._replace(world=after, faults=state.faults._replace(forges=left))
            yield f"last.{bqual}@{place}", State(after, over, FaultBudget(0, 0, 0, 0, 0, left), state.reported)

    def _never(self, world: ExternalState, command: Command, who: int) -> ExternalState:
        """A command that never arrives, since its session is cut."""
        if who == 0 and command[0] in ("ask", "prepare", "alone", "mark", "decide", "both"):
            return self.transitions.apply(world, ("leave", command[1]))[0]
        return world._replace(blind=True) if command[0] == "is_fenced" else world

    def _disk_steps(self, state: State, who: int, command: Command, after: ExternalState) -> Iterator[Step]:
        """A process is killed between a write and its sync, or the sync fails."""
        kind = {"record": "decision", "fence": "fence", "decide": "row"}.get(command[0])
        if kind is None or kind in state.world.unsynced:
            return
        # What was there before becomes no more durable than it was.
        written = after._replace(unsynced=state.world.unsynced | {kind}, shadow=state.world.shadow)
        if who:
            yield f"{self.names[who]}.unsynced", _moved(state, who, written, DEAD)
        elif state.faults.crashes:
            spent = state._replace(faults=state.faults._replace(crashes=state.faults.crashes - 1))
            yield "C.unsynced", _moved(spent, 0, kill(written, self.transitions), DEAD)
        if command[0] == "record" and state.faults.fates:
            charged = state._replace(faults=state.faults._replace(fates=state.faults.fates - 1))
            failed = state.world._replace(shadow=command[3])
            yield "C.sync-fails", self._advance(charged, who, failed, ("!", CommandLost, "the sync failed"))

    def _advance(self, state: State, who: int, world: ExternalState, reply: Reply) -> State:
        process = self.processes[who]
        position = process.advance(state.positions[who], reply)
        reported = state.reported
        command = process.command(position)
        while command is not None and command[0] in _INTERNAL:
            if command[0] == "report":
                reported = command[1]
                position = process.advance(position, ("=", None))
            else:
                world, answer = self.transitions.apply(world, command)
                position = process.advance(position, answer)
            command = process.command(position)
        return _moved(state, who, world, position)._replace(reported=reported)

    def _events(self, state: State) -> Iterator[Step]:
        world, faults = state.world, state.faults
        for number in range(len(world.late)):
            yield f"land{number}", state._replace(world=land(self.transitions, world, number))
        dead = state.positions[0] == DEAD
        if faults.crashes and not dead:
            spent = state._replace(faults=faults._replace(crashes=faults.crashes - 1))
            yield "crash", _moved(spent, 0, kill(world, self.transitions), DEAD)
        if faults.leases and not dead and world.life is IncarnationState.ALIVE:
            log = world.log._replace(lives=((INCARNATION, IncarnationState.DEAD),))
            taken = faults._replace(leases=faults.leases - 1)
            yield "lease", state._replace(world=world._replace(log=log), faults=taken)
        if faults.cuts:
            cut = state._replace(faults=faults._replace(cuts=faults.cuts - 1))
            for name in (*self.scenario.opened, LEDGER) if self.scenario.marked else self.scenario.opened:
                after = self.transitions.apply(world, ("leave", name))[0]
                if after != world:
                    yield f"cut.{name}", cut._replace(world=after)
        if world.wrong_url:
            yield "found", state._replace(world=world._replace(wrong_url=False))
        elif faults.wrong_urls:
            gone = state._replace(faults=faults._replace(wrong_urls=faults.wrong_urls - 1))
            yield "wrong-url", gone._replace(world=world._replace(wrong_url=True))
        decided = any(recs is not None for _, recs in (*world.log.outcomes, *world.rows))
        if faults.failovers:
            over = state._replace(faults=faults._replace(failovers=faults.failovers - 1))
            for name in self.transitions.names:
                here = self.transitions.state(world, name)
                if here in ("prepared", "committed", "aborted"):
                    kept = self.transitions.fail_over(world, name, losing=False)
                    yield f"promoted.{name}", over._replace(world=kept)
                if here == "prepared" and decided:
                    lost = self.transitions.fail_over(world, name, losing=True)
                    yield f"failover.{name}", over._replace(world=lost)
        if self.scenario.meddles and decided and not world.meddled:
            for name in self.transitions.names:
                if self.transitions.state(world, name) == "prepared":
                    yield f"meddle.{name}", state._replace(world=self.transitions.meddle(world, name))
        if faults.forges:
            yield from self._forge_steps(state)
        if dead and self.scenario.holds:
            for name in self.transitions.names:
                if self.transitions.state(world, name) == "held":
                    yield f"notice.{name}", state._replace(world=self.transitions.notice(world, name))


def _moved(state: State, who: int, world: ExternalState, position: int) -> State:
    positions = (*state.positions[:who], position, *state.positions[who + 1 :])
    return state._replace(world=world, positions=positions)


def _choices(parents: list[tuple[int, str]], position: int) -> list[str]:
    choices: list[str] = []
    while position:
        position, choice = parents[position]
        choices.append(choice)
    return choices[::-1]
