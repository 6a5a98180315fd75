"""The least and the greatest values of a file, as a table's log has them: what deltalake gets wrong is set right.

Readers pass over files by them, so that a filter would miss rows, and a merge by others would double them. deltalake
makes doubles of decimals, ends them where 64 bits end, and counts no NaN, which Spark takes for the greatest number.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: Decimals of more digits than a double keeps.
_LONG: Final = re.compile(r"decimal\((1[6-9]|[23]\d),\d+\)")
_LARGEST: Final = {"float": (2 - 2**-23) * 2.0**127, "double": sys.float_info.max}


def with_nan(batch: pa.RecordBatch | pa.StructArray, within: str = "") -> Iterator[str]:
    """The columns that have a NaN, with the names that lead there, as Parquet spells them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields, columns = (
        (batch.schema, batch.columns) if isinstance(batch, pa.RecordBatch) else (batch.type, batch.flatten())
    )
    for field, values in zip(fields, columns, strict=True):
        if pa.types.is_struct(field.type):
            yield from with_nan(values, f"{within}{field.name}.")
        elif pa.types.is_floating(field.type) and pc.any(pc.is_nan(values)).as_py():
            yield f"{within}{field.name}"


def right(stats: str, file: Path, fields: Mapping[str, Any], nan: Set[str]) -> str:
    """A file's statistics with right limits. `nan` has the columns with a NaN."""
    found = json.loads(stats)
    for limits, best in (("minValues", min), ("maxValues", max)):
        if limits in found:
            exact = _exact(file, best) if _LONG.search(str([*fields.values()])) else {}
            found[limits] = dict(_right(found[limits], fields, exact, nan if best is max else frozenset()))
    return _text(found)


def _right(
    limits: Mapping[str, Any], fields: Mapping[str, Any], exact: Mapping[str, Any], nan: Set[str], within: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, value in limits.items():
        kind, path = fields[name]["type"], f"{within}{name}"
        if isinstance(value, dict):
            parts = {each["name"]: each for each in kind["fields"]}
            yield name, dict(_right(value, parts, exact, nan, f"{path}."))
        elif value is None or not _LONG.fullmatch(kind):  # null is infinity, and says nothing
            yield name, _LARGEST[kind] if path in nan and value is not None else value
        elif path in exact:
            yield name, exact[path]


def _exact(file: Path, best: Any) -> dict[str, Decimal]:
    """The limits that the file itself has of its decimals."""
    from pyarrow import parquet

    about = parquet.read_metadata(file)
    found: dict[str, Any] = {}
    unknown = set()
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            path, known = column.path_in_schema, column.statistics
            if known is not None and known.has_min_max:
                value = known.min if best is min else known.max
                found[path] = best(value, found.get(path, value))
            elif known is None or known.null_count != column.num_values:
                unknown.add(path)
    return {path: value for path, value in found.items() if path not in unknown and isinstance(value, Decimal)}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_text(each)}' for name, each in value.items())}}}"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)
