"""What a decision keeps for people and for traces: the transaction's note, and its place in a trace.

Both stand in the evidence of a branch, under keys of their own, that no resource manager reads. So they are written
with the decision itself, in the log or in the marked row, and are gone with it, at no write of their own; processes of
an earlier version read the decision as before. No outcome ever depends on either.

Where a branch has ended otherwise than it was decided, a memo keeps the note for as long as that outcome is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from txpool.errors import ProgrammingError
from txpool.resources.base import BranchRecord

NOTE, TRACEPARENT = "note", "traceparent"

_LONGEST = 200
_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def checked_note(note: object) -> str:
    """The note, if it is one; ProgrammingError."""
    if not isinstance(note, str):
        raise ProgrammingError(f"a note is text, and not {type(note).__name__}. Nothing was begun or changed")
    if len(note) > _LONGEST or not note.isprintable():
        raise ProgrammingError(
            f"a note is one line of at most {_LONGEST} printable characters, and this one has {len(note)}, or some "
            "that are not printable. Nothing was begun or changed"
        )
    return note


def decision_annotations(note: str, traceparent: str) -> dict[str, str]:
    """Those that there are."""
    return {key: text for key, text in ((NOTE, note), (TRACEPARENT, traceparent)) if text}


def with_annotations(records: Sequence[BranchRecord], added: Mapping[str, str]) -> list[BranchRecord]:
    """The records of a decision with these remarks, where there is a branch that has evidence.

    To a branch without evidence nothing is added: that it has none is how recovery judges it.
    """
    found = list(records)
    for place, record in enumerate(found):
        if record.evidence:
            found[place] = replace(record, evidence={**record.evidence, **added})
            break
    return found


def printable(note: str) -> str:
    """A note as it can be shown, whoever has written it."""
    return "".join(each if each.isprintable() else "?" for each in note[:_LONGEST])


def annotations_in(records: Iterable[BranchRecord]) -> dict[str, str]:
    """The remarks that a decision has; whoever may write one may have written anything."""
    for record in records:
        evidence = record.evidence if isinstance(record.evidence, Mapping) else {}
        note, traceparent = (str(evidence.get(key, "")) for key in (NOTE, TRACEPARENT))
        if note or traceparent:
            return {NOTE: printable(note), TRACEPARENT: traceparent if _TRACEPARENT.fullmatch(traceparent) else ""}
    return {NOTE: "", TRACEPARENT: ""}
