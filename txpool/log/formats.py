"""The format numbers of everything stored. What a later version has written is reported, and left alone.

- A log as a whole has `format` in its meta table. It covers the columns, and the branches of a decision. These are a
  JSON list without a number of its own, since the first version reads nothing else; a later format would be an object
  with a number. The note of a last resource is such an object, of format 2: former versions leave it alone.
- A side record has `format` in its JSON. Those of the kinds `audit`, `suspended` and `expired` are of format 1 without
  it, since the first version reads no further key or element there; a later format of them would have the number. The
  side record of an incarnation consists of the number alone.
- A gtrid begins with its number, and so does every branch, marked row, pointer and staging table: see `txpool.xid`.
  Those of another number belong to another version, and are left alone without an error.
- A table of marks has its number in the row of its identity: see `txpool.resources.marked.xids`.
- The lock files of incarnations, and the reserve, have no format.
"""

from __future__ import annotations

import json
from typing import Any, Final

from txpool.errors import LogError, described
from txpool.log.base import SideRecord

#: The format of the log itself, and of every kind of side record.
FORMAT: Final = "1"


def require(found: object, what: str) -> None:
    """LogError if `what` is stored in another format than this version's."""
    if found != FORMAT:
        raise LogError(
            f"{what} has format {found}; this txpool reads format {FORMAT}. A later txpool has written it: use that "
            "one. Nothing was done"
        )


def pack(**fields: Any) -> str:
    """The text of a side record, with its format."""
    return json.dumps({"format": FORMAT, **fields})


def unpack(record: SideRecord) -> Any:
    """The content of a side record, whose format may be missing. LogError if that is a later one, or damaged."""
    what = f"what the log keeps as {record.kind} of {record.name}"
    try:
        found = json.loads(record.text)
    except ValueError as error:
        raise LogError(f"{what} is damaged: {described(error)}. Nothing was done") from error
    if isinstance(found, dict):
        require(found.pop("format", FORMAT), what)
    return found
