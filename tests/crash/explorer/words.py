"""Commands and answers, as people read them."""

from __future__ import annotations

from tests.crash.explorer.model import Command, Reply

_SAID = {
    "ask": "ask {place} whether it has only read",
    "prepare": "PREPARE {place}",
    "commit": "COMMIT PREPARED {place}",
    "rollback": "ROLLBACK PREPARED {place}",
    "leave": "ROLLBACK {place} (a local transaction)",
    "alone": "COMMIT {place} (one phase)",
    "list": "list the prepared branches of {place}",
    "mark": "INSERT the row into {place}, naming {named}",
    "decide": "COMMIT {place} with its row",
    "both": "INSERT the row, naming {named}, and COMMIT {place} in one message",
    "abort": "close the session, insert a tombstone into {place}",
    "tombstone": "insert a tombstone into {place}",
    "rows": "read the rows of {place}",
    "delete": "delete the row of {place}",
    "record": "write the decision to the log, naming {named}",
    "insert": "write the decision to the log, naming {named}",
    "note_last": "note the last resource {detail} in the log",
    "abort_noted": "write an abort record to the log, in the note's place",
    "last_resources": "read the log's last resources",
    "dismiss_heuristics": "delete a heuristic outcome from the log",
    "is_fenced": "ask the log for a fence",
    "fence": "write the fence to the log",
    "expire": "move the incarnation out of the log's registry",
    "expired": "ask the log for incarnations that have expired",
    "finish": "write the finished mark to the log",
    "forget": "delete the decision from the log",
    "purge": "delete what the log keeps of it",
    "finished": "read the log's finished marks",
    "decisions": "read the log's decisions",
    "pointers": "read the log's pointers",
    "aborted": "read the log's abort records",
    "incarnations": "ask the log who is alive",
    "point": "write a pointer to the log",
    "record_heuristic": "write a heuristic outcome to the log",
    "note_location": "note in the log that it prepares in {detail}",
    "locations": "read in the log where its nodes prepare",
    "reach": "reach {place} by its note",
}
_SAID_LOG = {"abort": "write an abort record to the log"}


def describe(command: Command) -> str:
    """A command as people read it."""
    verb, place = command[:2]
    named = [bqual for bqual, _, _ in command[3]] if verb in ("mark", "both", "record", "insert") else []
    said = _SAID_LOG.get(verb, _SAID[verb]) if place == "log" else _SAID[verb]
    return said.format(place=place, named=", ".join(named) or "nobody", detail=command[-1])


def answer_of(reply: Reply) -> str:
    """A reply as people read it."""
    if reply[0] == "!":
        return f"error ({reply[2]})"
    value = reply[1]
    if isinstance(value, frozenset):
        value = sorted(map(str, value))
    return "done" if value is None else f"answers {getattr(value, 'value', value)}"
