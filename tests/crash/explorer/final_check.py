"""The end of an execution: all processes die or have ended, recovery runs to its end, and invariants are checked."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.crash.explorer.actors import DEAD, ENDED, manager_of, unpack
from tests.crash.explorer.model import GTRID, INCARNATION, LEDGER, Command, ExternalState, Reply, Transitions, named
from tests.crash.explorer.scenarios import Scenario
from tests.crash.explorer.words import answer_of, describe
from txpool.log.base import IncarnationState
from txpool.tm.commit.request import Outcome

_READS = {
    "list",
    "rows",
    "reach",
    "locations",
    "incarnations",
    "expired",
    "finished",
    "pointers",
    "decisions",
    "aborted",
}
_READS |= {"heuristics"}


class End(NamedTuple):
    """How a world ends up; `problem` is empty where the invariants hold."""

    ends: frozenset[str]
    meddled: bool
    #: A failover has lost a branch.
    failed: bool
    #: A hazard may be told of what has ended as decided: a server has failed over, or the log was out of reach.
    hazard: bool
    notes: frozenset[tuple[str, str, str]]
    problem: str


class DirectPort:
    """Recovery's way into a world where everything can be reached, and nothing is lost any more."""

    def __init__(self, transitions: Transitions) -> None:
        self.flaws = transitions.flaws
        self.world: ExternalState
        self.story: list[str | tuple[Command, Reply]] = []
        self._transitions = transitions

    def call(self, *command: Any) -> Any:
        before = self.world
        self.world, reply = self._transitions.apply(before, command)
        if command[0] not in _READS:
            self.story.append((command, reply))
        return unpack(reply)


class FinalCheck:
    """Checks the end of executions; each distinct one once."""

    def __init__(self, scenario: Scenario, transitions: Transitions) -> None:
        self._scenario = scenario
        self._transitions = transitions
        self._port = DirectPort(transitions)
        self._manager = manager_of(scenario, self._port)
        self._known: dict[tuple[ExternalState, bool], End] = {}

    @property
    def worlds(self) -> int:
        """How many worlds recovery was run in."""
        return len(self._known)

    def problem(self, world: ExternalState, position: int, reported: Outcome | None) -> str:
        """What is wrong with this end of an execution, or nothing."""
        lives = position == ENDED and world.life is not IncarnationState.DEAD and reported is not Outcome.IN_DOUBT
        starts = [(world, True)] if lives else []
        starts.append((kill(world, self._transitions), False))
        starts += [(after, False) for after in self._without_power(world)]
        for start, alive in starts:
            problem = self._problem_of(self._end(start, alive), reported)
            if problem:
                return problem
        return ""

    def tell(self, world: ExternalState, position: int, reported: Outcome | None) -> list[str]:
        """The story of the end in which something is wrong."""
        lives = position == ENDED and world.life is not IncarnationState.DEAD and reported is not Outcome.IN_DOUBT
        starts = [("the coordinator lives on; recovery scans", world, True)] if lives else []
        dead = "the coordinator is dead; recovery scans" if position == DEAD else "the coordinator dies; recovery scans"
        starts.append((dead, kill(world, self._transitions), False))
        starts += [("the power is lost; recovery scans", after, False) for after in self._without_power(world)]
        for title, start, alive in starts:
            self._port.story = [f"--              {title}"]
            problem = self._problem_of(self._run(start, alive), reported)
            if problem:
                break
        lines = [
            line if isinstance(line, str) else f"recovery        {describe(line[0])}: {answer_of(line[1])}"
            for line in self._port.story
        ]
        return [*lines, f"==              {problem or 'every invariant holds'}"]

    def _end(self, start: ExternalState, alive: bool) -> End:
        found = self._known.get((start, alive))
        if found is None:
            found = self._known[start, alive] = self._run(start, alive)
            self._port.story.clear()
        return found

    def _run(self, start: ExternalState, alive: bool) -> End:
        port = self._port
        port.world = start
        self._scan()
        if start.wrong_url:
            port.story.append("event           the url of the marked datasource is right again")
            port.world = port.world._replace(wrong_url=False)
            self._scan()
        while port.world.late:
            port.story.append(f"late            {describe(port.world.late[0])} is executed now")
            port.world = land(self._transitions, port.world, 0)
            self._scan()
        held = [name for name in self._transitions.names if self._transitions.state(port.world, name) == "held"]
        for name in held:
            port.world = self._transitions.notice(port.world, name)
        if held:
            self._scan()
        waits = self._result(port.world, alive)
        if port.world.forged and not waits.problem:
            port.story.append("event           an administrator ends what is none of ours")
            port.world = port.world._replace(forged=frozenset())
            self._scan()
        return waits if waits.problem else self._result(port.world, alive)

    def _scan(self) -> None:
        for _ in range(6):
            before = self._port.world
            self._manager.scan()
            if self._port.world == before:
                return
        self._port.story.append("recovery        finds no end")

    def _result(self, world: ExternalState, alive: bool) -> End:
        states = [state for state, _ in world.branches] + [world.ledger]
        # An attempt that lost has no part in the outcome: it may only not stay. Nor has what has only read.
        named_states = list(zip((*self._transitions.names, LEDGER), states, strict=True))
        judged = [state for name, state in named_states if name not in {"zombie", *self._transitions.reading}]
        ends = frozenset(judged) & {"committed", "aborted"}
        read = {state for name, state in named_states if name in self._transitions.reading}
        problem = ""
        # Beside a last resource a crash or a lost answer may tear it, which is told; recovery alone never does.
        otherwise = world.meddled or world.failed or (self._scenario.last and not (alive and self._scenario.faultless))
        if len(ends) == 2 and not otherwise:
            problem = "MIX: one database has committed, another has rolled back"
        elif "committed" in read and "aborted" in ends and not otherwise:
            problem = "EARLY: a reader has committed, and the others have rolled back"
        elif (
            len(ends)
            and "zombie" in self._transitions.names
            and self._transitions.state(world, "zombie") == "committed"
        ):
            problem = "an attempt that lost has committed"
        elif {"prepared", "held"} & set(states):
            problem = "a branch stays prepared"
        elif world.touched:
            problem = "TOUCHED: a branch was ended that is none of ours, and that no decision names"
        elif world.forged & named(world):
            pass  # Somebody has taken the name of a branch that has ended: its decision is kept until that is gone.
        elif any(kept is not None for _, kept in (*world.log.outcomes, *world.rows) if not (alive and kept == LEDGER)):
            problem = "a decision stays behind"
        elif not alive and (world.log.outcomes or world.rows or world.log.finished or world.log.pointers):
            problem = "a mark, an abort record, a pointer or a tombstone stays behind"
        return End(ends, world.meddled, world.failed, bool(world.changed) or world.blind, world.log.notes, problem)

    def _problem_of(self, end: End, reported: Outcome | None) -> str:
        if end.problem:
            return end.problem
        heuristic = reported is not None and reported.value.startswith("heuristic")
        told = heuristic or bool(end.notes)
        if self._scenario.last:
            return _problem_beside_last(end, reported, told)
        if end.failed:
            return "" if told else "UNREPORTED: a failover has lost a branch, and nobody is told"
        if end.meddled:
            # Without evidence only the coordinator sees it, whose first COMMIT does not find the branch.
            seen = self._scenario.evidence or reported is not None
            return "" if told or not seen else "UNREPORTED: a person ended a branch otherwise, and nobody is told"
        if reported is Outcome.COMMITTED and end.ends - {"committed"}:
            return "FALSE: success was reported, and a database has rolled back"
        if reported is Outcome.ROLLED_BACK and "committed" in end.ends:
            return "FALSE: rollback was reported, and a database has committed"
        hazards = reported in (None, Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.IN_DOUBT, Outcome.HEURISTIC_HAZARD)
        hazards = hazards and all(ended == "lost" for *_, ended in end.notes)
        if told and not (end.hazard and hazards):
            return f"FALSE: {reported.value if reported else 'a heuristic outcome'} is told, and no database did that"
        if any({"commit": "aborted", "rollback": "committed"}[decided] in end.ends for _, decided, _ in end.notes):
            return "FALSE: a hazard is told of what has ended otherwise everywhere"
        return ""

    def _without_power(self, world: ExternalState) -> list[ExternalState]:
        """What a loss of power may leave, where the disk holds anything that was not synced."""
        if not self._scenario.disk or not (world.unsynced or world.shadow):
            return []
        log = world.log
        if "decision" in world.unsynced:
            log = log._replace(outcomes=frozenset(kept for kept in log.outcomes if kept[1] is None))
        if "fence" in world.unsynced:
            log = log._replace(lives=((INCARNATION, IncarnationState.DEAD),))
        on_their_way = tuple(command for command in world.late if command[1] != "log")
        lost = world._replace(log=log, unsynced=frozenset(), shadow=None, late=on_their_way)
        if "row" in world.unsynced:
            lost = lost._replace(rows=frozenset(row for row in lost.rows if row[1] is None), ledger="aborted")
        after = [lost]
        if world.shadow is not None and not log.outcomes:
            after.append(lost._replace(log=log._replace(outcomes=frozenset({(GTRID, world.shadow)}))))
        return [kill(each, self._transitions) for each in after]


def _problem_beside_last(end: End, reported: Outcome | None, told: bool) -> str:
    if len(end.ends) == 2 and not told:
        return "UNREPORTED: a last resource has committed, another database has rolled back, and nobody is told"
    if reported is Outcome.COMMITTED and "aborted" in end.ends:
        return "FALSE: success was reported, and a database has rolled back"
    if reported is Outcome.ROLLED_BACK and "committed" in end.ends:
        return "FALSE: rollback was reported, and a database has committed"
    if len(end.ends) < 2 and (reported is Outcome.HEURISTIC_MIXED or any(ended != "lost" for *_, ended in end.notes)):
        return "FALSE: a mixed outcome is told, and there is none"
    return ""


def kill(world: ExternalState, transitions: Transitions) -> ExternalState:
    """The coordinator is dead, and the databases notice; what it had sent is still on its way."""
    for name in transitions.names:
        world = transitions.apply(world, ("leave", name))[0]
    world = transitions.apply(world, ("leave", "ledger"))[0] if world.ledger else world
    lives = tuple(
        (name, IncarnationState.DEAD if life is IncarnationState.ALIVE else life) for name, life in world.log.lives
    )
    return world._replace(log=world.log._replace(lives=lives))


def land(transitions: Transitions, world: ExternalState, number: int) -> ExternalState:
    """The effect of a command that had been given up."""
    command: Command = world.late[number]
    late = world.late[:number] + world.late[number + 1 :]
    return transitions.apply(world._replace(late=late), command)[0]
