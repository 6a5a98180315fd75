"""Finds the texts in a user's function that may name a datasource.

A driver that knows the databases of its tasks can roll back there what a lost attempt has prepared while the job still
runs. A missed name, or a text that names something else, does no harm: recovery ends those branches later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from txpool.datasource import Source

#: The largest number of objects to look at, since a function may refer to very many.
_LIMIT = 10_000


def references_in(function: object) -> Iterator[str | Source]:
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
        elif isinstance(found, Source):
            yield found
        else:
            waiting.extend(_parts_of(found))


def _parts_of(found: Any) -> Iterator[object]:
    if isinstance(found, FunctionType):
        yield from (found.__code__, found.__defaults__, found.__kwdefaults__)
        for cell in found.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
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
