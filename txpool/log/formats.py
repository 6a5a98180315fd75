"""The numbers of all that is stored: whoever meets what a later version has written says so, and touches nothing.

- A log as a whole has `format` in its meta table. It speaks for the columns, and for the branches of a decision: these
  are a JSON list without a number of its own, since the version of before the notes reads no other. A later one would
  be an object with its number.
- What is kept beside the decisions has `format` in its own JSON: notes of sites, errors, ends, and since when something
  is of no use. Three kinds have it from a later version at the earliest, and are of format 1 without it, since the
  version of before the notes reads no key or element more: `audit`, `suspended`, `expired`. What an incarnation's memo
  says is a number and nothing else.
- A gtrid, and so every branch, marked row, pointer and staging table, begins with its number: see `txpool.xid`. Those
  of another number are another version's, and are left alone without an error.
- A table of marks has its number in the row of its identity: see `txpool.resources.xids`.
- A lock of an incarnation, and the reserve, are files without content.
"""

from __future__ import annotations

import json
from typing import Any, Final

from txpool.errors import LogError
from txpool.log.base import SideRecord

#: Of the log itself, and of every kind of memo.
FORMAT: Final = "1"


def require(found: object, what: str) -> None:
    """LogError where something stored has another format than this version's."""
    if found != FORMAT:
        raise LogError(
            f"{what} has format {found}; this txpool reads format {FORMAT}. A later txpool has written it: use that "
            "one. Nothing was done"
        )


def pack(**fields: Any) -> str:
    """The text of a memo, with its number."""
    return json.dumps({"format": FORMAT, **fields})


def unpack(memo: SideRecord) -> Any:
    """What the text of a memo says, whose number may be missing. LogError where it is a later one, or damaged."""
    what = f"what the log keeps as {memo.kind} of {memo.name}"
    try:
        found = json.loads(memo.text)
    except ValueError as error:
        raise LogError(f"{what} is damaged: {error}. Nothing was done") from error
    if isinstance(found, dict):
        require(found.pop("format", FORMAT), what)
    return found
