"""Keeps null lists and maps of structs null.

pyiceberg brings each batch that it writes or reads into the table's schema. If a list's elements or a map's values are
structs, it builds the array anew by its offsets, and a null becomes an empty one without an error.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

_list = ArrowProjectionVisitor.list
_map = ArrowProjectionVisitor.map


def keep_nulls() -> None:
    """Correct pyiceberg's projection, for this process."""
    ArrowProjectionVisitor.list = _kept_list  # type: ignore[assignment, method-assign]
    ArrowProjectionVisitor.map = _kept_map  # type: ignore[assignment, method-assign]


def _kept_list(self: ArrowProjectionVisitor, kind: Any, given: Any, *parts: Any) -> Any:
    return _with_nulls(given, _list(self, kind, given, *parts))


def _kept_map(self: ArrowProjectionVisitor, kind: Any, given: Any, *parts: Any) -> Any:
    return _with_nulls(given, _map(self, kind, given, *parts))


def _with_nulls(given: Any, made: Any) -> Any:
    if made is None or made.null_count == given.null_count:
        return made
    mask = given.is_null()
    offsets = pc.add(made.offsets, pa.scalar(0, made.offsets.type))  # a copy: a mask goes with none that is sliced
    if isinstance(made, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=mask)
    return type(made).from_arrays(offsets, made.values, made.type, mask=mask)
