"""Annotations of a decision, for people and for traces: the transaction's note, and its place in a trace.

Both are kept in the evidence of a branch, under keys that no resource manager reads. So they are written and deleted
with the decision itself, in the log or in the marked row, without a write of their own, and earlier versions read the
decision as before. No outcome ever depends on them.

If a branch has ended otherwise than decided, a side record keeps the note for as long as that outcome is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from txpool.errors import ProgrammingError
from txpool.resources.base import BranchRecord

NOTE, TRACEPARENT = "note", "traceparent"

_MAX_LENGTH = 200
_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def checked_note(note: object) -> str:
    """The note itself; ProgrammingError if it is not one line of text."""
    if not isinstance(note, str):
        raise ProgrammingError(f"a note is text, and not {type(note).__name__}. Nothing was begun or changed")
    if len(note) > _MAX_LENGTH or not note.isprintable():
        raise ProgrammingError(
            f"a note is one line of at most {_MAX_LENGTH} printable characters, and this one has {len(note)}, or some "
            "that are not printable. Nothing was begun or changed"
        )
    return note


def decision_annotations(note: str, traceparent: str) -> dict[str, str]:
    """The annotations that are not empty, by their keys."""
    return {key: text for key, text in ((NOTE, note), (TRACEPARENT, traceparent)) if text}


def with_annotations(records: Sequence[BranchRecord], annotations: Mapping[str, str]) -> list[BranchRecord]:
    """The records of a decision, with the annotations in the evidence of the first branch that has any.

    A branch without evidence stays so, since recovery judges it by that.
    """
    annotated = list(records)
    for position, record in enumerate(annotated):
        if record.evidence:
            annotated[position] = record._replace(evidence={**record.evidence, **annotations})
            break
    return annotated


def printable(note: str) -> str:
    """A note as it can be shown safely, whoever has written it."""
    return "".join(each if each.isprintable() else "?" for each in note[:_MAX_LENGTH])


def traceparent_in(text: str) -> str:
    """A traceparent in W3C's form, whoever has written it; empty for any other text."""
    return text if _TRACEPARENT.fullmatch(text) else ""


def annotations_in(records: Iterable[BranchRecord]) -> dict[str, str]:
    """The annotations that a decision has; nothing else of what may stand under their keys."""
    for record in records:
        evidence = record.evidence if isinstance(record.evidence, Mapping) else {}
        note, traceparent = (str(evidence.get(key, "")) for key in (NOTE, TRACEPARENT))
        if note or traceparent:
            return {NOTE: printable(note), TRACEPARENT: traceparent_in(traceparent)}
    return {NOTE: "", TRACEPARENT: ""}
