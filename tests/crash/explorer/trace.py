"""What happened, one line a step: who, what, to which database, and what came of it."""

from __future__ import annotations

from tests.crash.explorer.explore import Explorer, Finding, State
from tests.crash.explorer.words import answer_of, describe

_FATES = {
    "reply-lost": "is executed, and the reply is lost",
    "lost": "never arrives",
    "late": "is on its way, and its sender gives up",
    "no": "is refused by the database",
    "unsynced": "is written and not synced; the process is killed",
    "sync-fails": "is written, and the sync fails",
}
_EVENTS = {
    "crash": "the coordinator is killed",
    "lease": "the coordinator's lease is lost, and it goes on",
    "cut": "the session to {0} is cut",
    "wrong-url": "the url of the marked datasource leads to a copy now",
    "found": "the url of the marked datasource is right again",
    "meddle": "a person rolls the branch in {0} back by hand",
    "promoted": "{0} fails over to a standby that has everything",
    "failover": "{0} fails over to a standby that lacks the prepared branch",
    "forge": "somebody who owns nothing prepares {0}",
    "last": "somebody who owns nothing prepares {0}, and whatever runs still is killed",
    "notice": "{0} notices that the session which had prepared is gone",
}


_WHO = {"C": "coordinator", "O": "operator"}


class UnknownChoice(Exception):
    """A replay that does not fit the code as it is now."""


def replay_string(finding: Finding) -> str:
    """What `python -m tests.crash.explorer --replay` takes."""
    return f"{finding.scenario.name}/{' '.join(finding.choices)}"


def tell(explorer: Explorer, choices: list[str]) -> tuple[list[str], str]:
    """The lines of an execution and of its end, and what is wrong with it (nothing, perhaps)."""
    state = explorer.first
    lines: list[str] = []
    for choice in choices:
        following = dict(explorer.steps(state)).get(choice)
        if following is None:
            raise UnknownChoice(
                f"{choice!r} cannot be chosen after {len(lines)} steps: {sorted(dict(explorer.steps(state)))}"
            )
        lines.append(f"{len(lines) + 1:2}  {_line(explorer, state, choice)}")
        if following.reported is not state.reported and following.reported is not None:
            lines[-1] += f"; the caller is told: {following.reported.value}"
        state = following
    problem = explorer.problem(state)
    lines += ["--  " + line for line in explorer.final_check.tell(state.world, state.positions[0], state.reported)]
    return lines, problem


def trace(explorer: Explorer, finding: Finding) -> str:
    """A violation, for people: every step, and how to see it again."""
    lines, _ = tell(explorer, finding.choices)
    again = f"python -m tests.crash.explorer --replay '{replay_string(finding)}'"
    return "\n".join([f"{finding.problem} [{finding.scenario.name}]", *lines, f"again: {again}"])


def _line(explorer: Explorer, state: State, choice: str) -> str:
    if choice.startswith("land"):
        return f"late          {describe(state.world.late[int(choice[4:])])}: is executed now"
    what, _, detail = choice.partition(".")
    if what in _EVENTS:
        return f"event         {_EVENTS[what].format(detail)}"
    who = explorer.names.index(what)
    command = explorer.processes[who].command(state.positions[who])
    assert command is not None
    came = _FATES.get(detail) or answer_of(explorer.transitions.apply(state.world, command)[1])
    return f"{_WHO.get(what, f'recoverer {what[1:]}'):13} {describe(command)}: {came}"
