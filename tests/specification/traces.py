"""What the explorer's processes did, as events of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.crash.explorer.actors import DEAD, ENDED, own_names
from tests.crash.explorer.explore import Explorer, State
from tests.crash.explorer.model import GTRID, Busy, Command, DatabaseError, Reply
from tests.crash.explorer.scenarios import LEDGER
from tests.crash.explorer.trace import UnknownChoice
from txpool.log.base import IncarnationState
from txpool.resources.base import Refused, Resolution
from txpool.tm.commit.request import Outcome


class Event(NamedTuple):
    """One event: see Protocol.tla."""

    who: str
    what: str
    at: str
    names: frozenset[str] = frozenset()
    fate: str = "ok"
    reply: str = ""


#: What a transaction is over, and what has happened.
Trace = tuple[dict[str, Any], list[Event]]

#: Commands under other names than the specification's, and what is asked of the environment alone.
_SAME = {"abort_noted": "abort", "note_location": "note"}
_TOLD = {Outcome.COMMITTED: "committed", Outcome.ROLLED_BACK: "rolled back", Outcome.IN_DOUBT: "in doubt"}
_AT_DATABASE = {"cut": "leave", "meddle": "rollback", "failover": "rollback"}
#: What the specification does not have: their effect shows in the answers.
_UNSEEN = frozenset({"promoted", "notice", "forge", "wrong-url", "found"})
#: Of commands, once nothing fails any more.
_LIMIT = 200


def recorded(explorer: Explorer, choices: list[str]) -> list[Event]:
    """The events of an execution, and of what a recoverer does when it goes on and nothing fails any more."""
    state = explorer.first
    found: list[Event] = []
    for choice in choices:
        following = dict(explorer.steps(state)).get(choice)
        if following is None:
            raise UnknownChoice(f"{choice!r} cannot be chosen after {len(found)} events")
        found += _events(explorer, state, choice, following)
        state = following
    for _ in range(_LIMIT):
        steps = dict(explorer.steps(state))
        going = [name for name in ("R2.ok", "R1.ok") if name in steps]
        ways = [name for name in steps if name.startswith("land")] or going
        if state.positions[0] not in (DEAD, ENDED) and "crash" in steps:
            ways = ["crash"]
        if not ways:
            break
        found += _events(explorer, state, ways[0], steps[ways[0]])
        state = steps[ways[0]]
    return found


def _events(explorer: Explorer, state: State, choice: str, following: State) -> Iterator[Event]:
    if choice.startswith("land"):
        for event in _of_command(explorer, state, "net", state.world.late[int(choice[4:])], "lands", None):
            yield event._replace(reply="")
        return
    what, _, detail = choice.partition(".")
    if what in ("crash", "lease"):
        yield Event("net", what, "")
    elif what == "last":
        yield Event("net", "crash", "")
    elif what in _AT_DATABASE:
        yield Event("net", _AT_DATABASE[what], detail)
    elif what not in _UNSEEN:
        number = explorer.names.index(what)
        command = explorer.processes[number].command(state.positions[number])
        assert command is not None
        reply = explorer.transitions.apply(state.world, command)[1]
        yield from _of_command(explorer, state, what, command, detail, reply)
        if what != "C" and command[0] == "tombstone" and "row" in following.world.unsynced:
            yield Event(what, "unsynced", LEDGER)
        if command[0] == "fence" and detail == "ok" and following.world.life is None:
            yield Event(what, "unregistered", "log")
    if following.reported is not state.reported and following.reported is not None:
        yield Event("C", "tell", "caller", reply=_TOLD.get(following.reported, "heuristic"))
    if following.positions[0] == ENDED != state.positions[0]:
        yield Event("C", "end", "caller")


def _of_command(
    explorer: Explorer, state: State, who: str, command: Command, fate: str, reply: Reply | None
) -> Iterator[Event]:
    verb, place, *arguments = command
    what: str = _SAME.get(verb) or verb
    names: frozenset[str] = frozenset()
    if verb in ("mark", "decide", "both", "record", "insert"):
        names = frozenset(name for _, name, _ in arguments[1])
    elif verb == "note_location":
        names = frozenset(arguments)
    own = own_names(explorer.scenario)
    if verb in ("commit", "rollback") and (place not in own or arguments[0] != own[place].bqual):
        yield Event(who, "foreign", place, fate=fate, reply="done")
        return
    yield Event(who, what, place, names, fate, _answer(what, reply) if reply and fate == "ok" else "")


def _answer(what: str, reply: Reply) -> str:
    """The answer in the specification's words."""
    if reply[0] == "!":
        if issubclass(reply[1], Busy):
            return "busy"
        return "no" if issubclass(reply[1], DatabaseError | Refused) else "unknown"
    value = reply[1]
    says: dict[str, Any] = {
        "prepare": lambda: {"commit": "yes"}.get(value, value),
        "ask": lambda: "yes" if value else "no",
        "is_fenced": lambda: "yes" if value else "no",
        "list": lambda: "prepared" if any(ours for _, ours in value) else "none",
        "incarnations": lambda: next((_life(life) for _, life in value), "gone"),
        "finished": lambda: "yes" if GTRID in value else "no",
        "pointers": lambda: "yes" if GTRID in dict(value) else "no",
        "decisions": lambda: "decided" if isinstance(dict(value).get(GTRID), tuple) else "none",
        "rows": lambda: _row(dict(value)[GTRID]) if GTRID in dict(value) else "none",
        "tombstone": lambda: _row(value),
        "abort": lambda: {Resolution.ABORTED: "won", Resolution.NOTED: "unknown", None: "won"}.get(value, "met"),
        "commit": lambda: value,
        "rollback": lambda: value,
        "alone": lambda: "committed",
    }
    return str(says[what]()) if what in says else "done"


def _row(kept: Any) -> str:
    return "tomb" if kept is None else "row"


def _life(life: IncarnationState) -> str:
    return str(life.value)


def shape_of(explorer: Explorer) -> dict[str, Any]:
    """What the transaction is over, as Protocol.tla's cases have it."""
    scenario = explorer.scenario
    return {
        "branches": set(scenario.names),
        "tasks": set(scenario.adopted),
        "early": set(scenario.opened[: scenario.early]),
        "losers": {"zombie"} if scenario.loser else set(),
        "marked": scenario.decides,
        "overdue": scenario.overdue,
        "configured": set(scenario.names) - set(scenario.missing),
        "noted": set(scenario.noted),
        "recoverers": set(explorer.names) - {"C", "O"},
        "without": set(),
        "disk": False,
    }
