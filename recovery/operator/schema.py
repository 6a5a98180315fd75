"""Describes the JSON that a command prints, for its help, from the types that it prints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

_PLAIN = {str: "text", float: "number", int: "number", bool: "true or false", types.NoneType: "null"}


def shape(kind: Any) -> str:
    """The JSON of a type in words, such as `{"gtrid": text, "age": number or null}`. A dict maps names to types."""
    if dataclasses.is_dataclass(kind):
        kind = typing.get_type_hints(kind)
    if isinstance(kind, dict):
        fields = ", ".join(f'"{name}": {shape(each)}' for name, each in kind.items())
        return f"{{{fields}}}"
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return " or ".join(map(shape, inner))
    if origin in (tuple, list, Sequence):
        return f"[{shape(inner[0])}, ...]"
    if origin is dict:
        return f"{{{shape(inner[0])}: {shape(inner[1])}, ...}}"
    return _PLAIN[kind]
