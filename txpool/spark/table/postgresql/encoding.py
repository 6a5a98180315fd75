"""Encodes Arrow's record batches for PostgreSQL's COPY, without a Python call for each value.

The values that a server would take and change are looked for here. All others the server itself judges: COPY's CSV is
written by Arrow, and read by the parsers of the types. If all columns of a table are of types for which the binary
format was measured to pay, the rows go in that (`binary`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from txpool.spark.table.postgresql import binary, csv
from txpool.spark.types import checks
from txpool.spark.types.encoding import ColumnEncoding, misfit, require_kept

#: About how much of a batch is encoded at a time, so that the memory of a task does not grow with its rows.
_SLICE_BYTES = 16 << 20
_MICROSECONDS = pa.time64("us")


def copy_options(encodings: Sequence[ColumnEncoding]) -> str:
    """COPY's options for what `encode` makes."""
    return "format csv, encoding 'UTF8'" if _as_text(encodings) else "format binary"


def encode(batches: Iterator[pa.RecordBatch], encodings: Sequence[ColumnEncoding]) -> Iterator[tuple[int, memoryview]]:
    """The rows of the batches as COPY reads them: how many rows, and their bytes.

    DataError with the column if its type would change a value.
    """
    as_text = _as_text(encodings)
    if not as_text:
        yield 0, memoryview(binary.HEADER)
    for batch in batches:
        rows = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            fields = []
            for array, encoding in zip(part.columns, encodings, strict=True):
                try:
                    _check(array, encoding)
                    fields.append((csv.field if as_text else binary.field)(array, encoding.kind))
                except (pa.ArrowInvalid, ValueError) as error:
                    raise misfit(encoding, error) from error
            yield part.num_rows, (csv.rows if as_text else binary.rows)(fields, part.num_rows)
    if not as_text:
        yield 0, memoryview(binary.TRAILER)


def _as_text(encodings: Sequence[ColumnEncoding]) -> bool:
    return any(encoding.as_text or encoding.array for encoding in encodings)


def _check(array: pa.Array, encoding: ColumnEncoding) -> None:
    """ValueError for a value that PostgreSQL would take, and change."""
    values = array.flatten() if encoding.array else array
    require_kept(values, encoding)
    if encoding.kind == "date":
        checks.require_days(values)
    elif encoding.kind == "timestamp":
        checks.require_moments(values, encoding.digits)
    elif encoding.kind == "time" and encoding.digits is not None:
        checks.require_fraction(values.cast(_MICROSECONDS).cast(pa.int64()), encoding.digits)
