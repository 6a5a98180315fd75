"""Corrects pyiceberg, for this process: nulls stay null, each row is in one partition, and that has its value.

pyiceberg brings each batch that it writes or reads into the table's schema. If a list's elements or a map's values are
structs, it builds the array anew by its offsets, and a null becomes an empty one without an error.

It divides what it writes by comparing values, for which 0.0 and -0.0 are the same, and NaN is not itself. So rows are
doubled or lost without an error, also when a delete or an upsert rewrites files of an earlier partitioning.

It reads a partition's double as a float, and its UUID as what it does not compare with. So a filter misses rows, an
upsert doubles them, and a manifest that is written again has another value, which engines take for the column's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.reader import DoubleReader, UUIDReader
from pyiceberg.io import pyarrow as io
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, _determine_partitions

from txpool.errors import DataError

if TYPE_CHECKING:
    from pyiceberg.avro.decoder import BinaryDecoder

_list = ArrowProjectionVisitor.list
_map = ArrowProjectionVisitor.map


def keep_nulls() -> None:
    """Correct pyiceberg's projection."""
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


def keep_rows() -> None:
    """Correct pyiceberg's partitioning."""
    vars(io)[_determine_partitions.__name__] = _whole


def keep_partitions() -> None:
    """Correct what pyiceberg reads of partitions."""
    DoubleReader.read = _double  # type: ignore[assignment, method-assign]
    UUIDReader.read = _bytes_of_uuid  # type: ignore[assignment, method-assign]


def _double(_: DoubleReader, decoder: BinaryDecoder) -> float:
    found: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
    return found


def _bytes_of_uuid(_: UUIDReader, decoder: BinaryDecoder) -> bytes:
    return decoder.read(16)


def _whole(spec: Any, schema: Any, arrow_table: Any) -> Any:
    made = list(_determine_partitions(spec, schema, arrow_table))
    if sum(each.arrow_table_partition.num_rows for each in made) != arrow_table.num_rows:
        fields = ", ".join(str(schema.find_column_name(each.source_id)) for each in spec.fields)
        raise DataError(
            f"the table is partitioned by {fields}, where rows have NaN or -0.0: they would be lost or doubled, and "
            "nothing was written. Overwrite these values first, or partition by another column"
        )
    return made
