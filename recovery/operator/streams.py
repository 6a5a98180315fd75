"""What `list` prints, one transaction after the other: there may be very many."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from recovery.operator.listing import InDoubt
from txpool.packed import Packed


class Counted:
    """Goes through transactions in doubt once: yields the first ones, and looks at the others."""

    def __init__(self, found: Iterable[InDoubt], limit: int | None) -> None:
        self._found = found
        self._limit = limit
        #: How many there are, of those seen; whether any has a heuristic outcome, and whether a person should look.
        self.count = 0
        self.heuristic = self.attention = False

    def __iter__(self) -> Iterator[InDoubt]:
        for each in self._found:
            self.count += 1
            self.heuristic = self.heuristic or bool(each.heuristics)
            self.attention = self.attention or each.attention
            if self._limit is None or self.count <= self._limit:
                yield each

    @property
    def left_out(self) -> int:
        """How many were not yielded."""
        return 0 if self._limit is None else max(self.count - self._limit, 0)


def write_texts(texts: Iterable[str], otherwise: str) -> None:
    """Print texts, with an empty line between two; `otherwise` if there are none."""
    separator = ""
    for text in texts:
        sys.stdout.write(f"{separator}{text}\n")
        separator = "\n"
    if not separator:
        sys.stdout.write(f"{otherwise}\n")
    sys.stdout.flush()


def write_lines(texts: Iterable[str]) -> None:
    """Print texts, one below the other."""
    for text in texts:
        sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_array(found: Iterable[Any]) -> None:
    """Print objects as a JSON array, as `write_json` prints a list."""
    _write(_array(found, ""))


def write_json(what: Any) -> None:
    """Print an object as JSON. It is never in memory as a whole."""
    packed = is_dataclass(what) and any(isinstance(getattr(what, each.name), Packed) for each in fields(what))
    _write(_object(what) if packed else _ENCODER.iterencode(what))


def _write(texts: Iterable[str]) -> None:
    for text in texts:
        sys.stdout.write(text)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _object(what: Any) -> Iterator[str]:
    separator = "{"
    for name, value in _plain(what).items():
        yield f"{separator}\n{_STEP}{_ENCODER.encode(name)}: "
        if isinstance(value, Packed):
            yield from _array(value, _STEP)
        else:
            yield textwrap.indent(_ENCODER.encode(value), _STEP).lstrip()
        separator = ","
    yield "\n}"


def _array(found: Iterable[Any], margin: str) -> Iterator[str]:
    separator = "["
    for each in found:
        yield f"{separator}\n{textwrap.indent(_ENCODER.encode(each), margin + _STEP)}"
        separator = ","
    yield "[]" if separator == "[" else f"\n{margin}]"


def _plain(found: Any) -> dict[str, Any]:
    if not is_dataclass(found):
        raise TypeError(f"{type(found).__name__} has no JSON")
    return {field.name: getattr(found, field.name) for field in fields(found)}


_STEP = "  "
_ENCODER = json.JSONEncoder(indent=_STEP, default=_plain)
