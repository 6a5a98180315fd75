"""What callers did and were told: a line of JSON as a transaction begins, and another when its caller has an answer.

A caller that was killed leaves the first line alone, or the first half of a line: it was told nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Told(Enum):
    """What a caller was told of its transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    NOTHING = "nothing"


class Key(NamedTuple):
    """A list of values in a database."""

    database: str
    key: str


class Read(NamedTuple):
    """A list as a transaction has read it."""

    key: Key
    values: tuple[str, ...]


@dataclass
class Attempt:
    """One transaction. What it appends to each list is its own name, once."""

    name: str
    appends: frozenset[Key]
    told: Told = Told.NOTHING
    reads: list[Read] = field(default_factory=list)


class Malformed(ValueError):
    """A line that is no line of a history."""


def attempts(lines: Iterable[str]) -> dict[str, Attempt]:
    """By name, the transactions of a history.

    Raises:
        Malformed: if a whole line is none of a history's, or a name begins or ends twice.
    """
    found: dict[str, Attempt] = {}
    for line in lines:
        if not line.endswith("\n"):
            continue  # its writer was killed
        try:
            _add(found, json.loads(line))
        except (TypeError, ValueError) as error:
            raise Malformed(f"no line of a history, or not in its place: {line!r}") from error
    return found


def _add(found: dict[str, Attempt], line: dict[str, Any]) -> None:
    match line:
        case {"begins": str(name), "appends": [*keys]} if name not in found:
            found[name] = Attempt(name, frozenset(Key(*each) for each in keys))
        case {"ends": str(name), "told": str(told), "reads": [*reads]} if _open(found, name) and told != "nothing":
            found[name].told = Told(told)
            found[name].reads += [Read(Key(database, key), tuple(values)) for database, key, values in reads]
        case _:
            raise ValueError(line)


def _open(found: dict[str, Attempt], name: str) -> bool:
    return name in found and found[name].told is Told.NOTHING


def begins(name: str, appends: Iterable[tuple[str, str]]) -> str:
    """The line that is written before the transaction begins."""
    return json.dumps({"begins": name, "appends": [*appends]}) + "\n"


def ends(name: str, told: str, reads: Iterable[tuple[str, str, list[str]]]) -> str:
    """The line that is written once the caller has its answer."""
    return json.dumps({"ends": name, "told": told, "reads": [*reads]}) + "\n"
