"""What a user's function mentions: the texts in it that may name a datasource.

A driver that knows which databases its tasks work on can free what a lost attempt holds there while the job still
runs. A mention that is overlooked, or means something else, does no harm: recovery finds all in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from txpool.datasource import DataSource

#: Objects to look at, at most: a function may reach very far.
_LIMIT = 10_000


def references_in(function: object) -> Iterator[str | DataSource]:
    """The texts, paths and datasources in a function, in what it closes over, and in the functions that it calls."""
    waiting: list[object] = [function]
    seen: dict[int, object] = {}
    while waiting and len(seen) < _LIMIT:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen[id(found)] = found
        if isinstance(found, str | Path):
            yield str(found)
        elif isinstance(found, DataSource):
            yield found
        else:
            waiting.extend(_parts_of(found))


def _parts_of(found: Any) -> Iterator[object]:
    if isinstance(found, FunctionType):
        yield from (found.__code__, found.__defaults__, found.__kwdefaults__)
        for cell in found.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # it is empty as yet
                continue
        names = set(_names(found.__code__))
        yield from (found.__globals__[name] for name in names if name in found.__globals__)
    elif isinstance(found, CodeType):
        yield from found.co_consts
    elif isinstance(found, MethodType):
        yield from (found.__func__, found.__self__)
    elif isinstance(found, partial):
        yield from (found.func, found.args, found.keywords)
    elif isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, tuple | list | set | frozenset):
        yield from found
    elif callable(found) and not isinstance(found, type) and hasattr(found, "__dict__"):
        yield from (vars(type(found)).get("__call__"), vars(found))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
