"""Encodes Arrow's record batches as parameters of prepared INSERT statements, without a Python call for each value.

Numbers travel as such, and all else as the texts that `encoding` has checked, or as bytes. So no value is quoted, or
read by the server's parser. As in `txpool.spark.types.encoding`, Arrow joins the pieces of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txpool.resources.mysql.bound_rows import MOST_PARAMETERS, BoundRows
from txpool.spark.table.mysql.encoding import floats_of, values_of, whole_numbers_of
from txpool.spark.types.buffers import concatenated, offsets_of
from txpool.spark.types.encoding import ColumnEncoding, misfit, require_kept

#: About how many parameters a statement has: with more of them the server takes longer for each.
_PARAMETERS: Final = 2_560
#: About how much of a batch is encoded at a time, so that the memory of a task does not grow with its rows.
_SLICE_BYTES: Final = 8 << 20
#: How each kind of value is bound: the protocol's number of its type, and of numbers the form in memory.
_NUMBERS: Final = {
    "number": (8, "<i8"),
    "bit": (8, "<i8"),
    "year": (8, "<i8"),
    "float": (4, "<f4"),
    "double": (5, "<f8"),
}
_BLOB, _VAR_STRING = 252, 253
#: The greatest length of which the length's own bytes are so many, after one that says so.
_LENGTHS: Final = ((250, 0), (2**16 - 1, 2), (2**24 - 1, 3))
_LONGEST_LENGTH: Final = 8
_EMPTY: Final = pa.scalar(b"", pa.large_binary())


def bound(
    batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding], head: bytes, limit: int
) -> Iterator[tuple[pa.RecordBatch, BoundRows | None]]:
    """The rows of a batch in parts, each bound to an INSERT; `head` is the text before the rows.

    None for a part that takes more than `limit` bytes. DataError if a value does not fit into its column.
    """
    most = max(1, _PARAMETERS // len(encodings))
    types = b"".join(map(_type, encodings))
    row = b"(" + b",".join([b"?"] * len(encodings)) + b")"
    at_once = max(most, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes) // most * most)
    for start in range(0, batch.num_rows, at_once):
        piece = batch.slice(start, at_once)
        rows = _rows(piece, encodings)
        data, ends = concatenated(rows), offsets_of(rows)
        ends = ends - ends[0]
        nulls = np.column_stack([_nulls(array) for array in piece.columns])
        for first in range(0, piece.num_rows, most):
            part = piece.slice(first, most)
            last = first + part.num_rows
            bits = np.packbits(nulls[first:last].ravel(), bitorder="little").tobytes()
            statement = head + b",".join([row] * part.num_rows)
            rows_bound = BoundRows(statement, types * part.num_rows, bits, data[ends[first] : ends[last]])
            if rows_bound.size > limit or len(encodings) > MOST_PARAMETERS:
                yield part, None
            else:
                yield part, rows_bound


def _type(encoding: ColumnEncoding) -> bytes:
    number = _NUMBERS[encoding.kind][0] if encoding.kind in _NUMBERS else _VAR_STRING
    return bytes([_BLOB if encoding.kind == "binary" else number, 0])


def _rows(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> pa.LargeBinaryArray:
    """The values of each row, without those that are NULL."""
    pieces: list[Any] = []
    for array, encoding in zip(batch.columns, encodings, strict=True):
        try:
            require_kept(array, encoding)
            parts = _parts(array, encoding)
        except (pa.ArrowInvalid, ValueError) as error:
            raise misfit(encoding, error) from error
        if array.null_count:
            valid = array.is_valid()
            parts = [pc.if_else(valid, part, _EMPTY) for part in parts]
        pieces += parts
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def _parts(array: pa.Array, encoding: ColumnEncoding) -> list[Any]:
    """The values of a column, NULL as anything: of fixed width, or each with its length before it."""
    if encoding.kind in _NUMBERS:
        numbers = (floats_of if encoding.kind in ("float", "double") else whole_numbers_of)(array, encoding)
        values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(_NUMBERS[encoding.kind][1])
        return [_binary(values, np.arange(len(array) + 1, dtype=np.int64) * values.dtype.itemsize)]
    texts = pc.fill_null(values_of(array, encoding), b"")
    return [_lengths(pc.binary_length(texts).to_numpy()), texts]


def _lengths(lengths: Any) -> pa.LargeBinaryArray:
    """Lengths as the protocol has them: in one byte, or in several after one that says how many."""
    if not len(lengths) or lengths.max() <= _LENGTHS[0][0]:
        return _binary(lengths.astype(np.uint8), np.arange(len(lengths) + 1, dtype=np.int64))
    widths = np.full(len(lengths), _LONGEST_LENGTH)
    for greatest, width in reversed(_LENGTHS):
        widths[lengths <= greatest] = width
    forms = np.empty(len(lengths), dtype=[("first", "u1"), ("length", "<u8")])
    forms["first"] = np.select([widths == 0, widths == 2, widths == 3], [lengths, 0xFC, 0xFD], 0xFE)
    forms["length"] = lengths
    kept = np.arange(forms.dtype.itemsize) <= widths[:, None]
    data = forms.view(np.uint8).reshape(len(lengths), -1)[kept]
    return _binary(data, np.concatenate(([0], np.cumsum(widths + 1))))


def _nulls(array: pa.Array) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else np.zeros(len(array), bool)


def _binary(data: Any, offsets: Any) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.asarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
