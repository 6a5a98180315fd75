"""Encodes Arrow's record batches in the binary format of PostgreSQL's COPY, without a Python call for each value.

A row consists of its fields, each a length and a value. Adjacent fields of fixed width are put into one NumPy record;
Arrow joins these records with the values of variable length. So a batch takes a few calls in C for each column,
however many rows it has. COPY then runs on the connection that is enlisted in the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txpool.errors import DataError
from txpool.spark.types.buffers import concatenated, offsets_of

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

#: About how much of a batch is encoded at a time, so that the memory of a task does not grow with its rows.
_SLICE_BYTES = 16 << 20
_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())
#: The version of jsonb's binary form.
_JSONB = pa.scalar(b"\x01", pa.large_binary())
# PostgreSQL counts days and microseconds from 2000-01-01.
_EPOCH_DAYS = 10_957
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
# The largest precision and scale at which unscaled decimals can be computed in 64 bits.
_WORD_DIGITS = 18
_WORD_SCALE = 16
_NEGATIVE = 0x4000


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How the values of a column are sent to PostgreSQL: the type, and whether it is an array of that type."""

    column: str
    kind: str
    #: The oid of the element type, which the header of an array has.
    oid: int = 0
    array: bool = False
    #: The texts that the column can have, where those are listed.
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _FixedWidth:
    """Values of a fixed width, for one field of a NumPy record with this `kind` and `shape`."""

    kind: str
    values: Any
    shape: tuple[int, ...] = ()


_Values: TypeAlias = _FixedWidth | Any  #: Values of a fixed width, or an Arrow array with values of variable length.


def encode(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> Iterator[memoryview]:
    """The rows of a batch in COPY's binary format, in pieces. DataError with the column if a value does not fit."""
    rows = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        pieces: list[_Values] = [_FixedWidth(">i2", len(encodings))]
        for array, encoding in zip(part.columns, encodings, strict=True):
            try:
                pieces += _field(array, encoding)
            except (pa.ArrowInvalid, ValueError) as error:
                raise DataError(
                    f"column {encoding.column}: a value does not fit into {encoding.kind}: {error}"
                ) from error
        yield concatenated(_joined(pieces, part.num_rows))


def _field(array: Any, encoding: ColumnEncoding) -> list[_Values]:
    """The lengths and values of a column."""
    if encoding.array:
        return _varying(array, _arrays(array, encoding))
    value = _VALUES[encoding.kind](array)
    if not isinstance(value, _FixedWidth):
        return _varying(array, value)
    width = np.dtype((value.kind, value.shape)).itemsize
    pieces: list[_Values] = [_FixedWidth(">i4", width), value]
    if not array.null_count:
        return pieces
    return [pc.if_else(array.is_valid(), _joined(pieces, len(array)), _NULL)]


def _varying(array: Any, value: pa.LargeBinaryArray) -> list[_Values]:
    lengths = pc.binary_length(value)
    if array.null_count:
        valid = array.is_valid()
        lengths, value = pc.if_else(valid, lengths, -1), pc.if_else(valid, value, _EMPTY)
    return [_FixedWidth(">i4", lengths.to_numpy()), value]


def _joined(pieces: Sequence[_Values], rows: int) -> pa.LargeBinaryArray:
    """The pieces of each row, concatenated."""
    parts: list[Any] = []
    adjacent: list[_FixedWidth] = []
    for piece in [*pieces, None]:
        if isinstance(piece, _FixedWidth):
            adjacent.append(piece)
            continue
        if adjacent:
            parts.append(_records(adjacent, rows))
            adjacent = []
        if piece is not None:
            parts.append(piece)
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _EMPTY)


def _records(pieces: Sequence[_FixedWidth], rows: int) -> pa.LargeBinaryArray:
    records = np.empty(rows, dtype=[(str(n), piece.kind, piece.shape) for n, piece in enumerate(pieces)])
    for number, piece in enumerate(pieces):
        records[str(number)] = piece.values
    return _binary(records, np.arange(rows + 1, dtype=np.int64) * records.dtype.itemsize)


def _binary(data: Any, offsets: Any) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _arrays(array: Any, encoding: ColumnEncoding) -> pa.LargeBinaryArray:
    """Lists as arrays of one dimension: a header, and the elements, encoded like fields."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    elements = array.flatten()
    fields = _joined(_field(elements, ColumnEncoding(encoding.column, encoding.kind)), len(elements))
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    offsets = offsets_of(fields)
    body = _binary(concatenated(fields), offsets[bounds] - offsets[0])
    head = [_FixedWidth(">i4", (lengths > 0).astype(np.int32)), _FixedWidth(">i4", 0), _FixedWidth(">i4", encoding.oid)]
    extent = [_FixedWidth(">i4", lengths), _FixedWidth(">i4", 1)]
    rows = len(array)
    sized = pc.if_else(pa.array(lengths > 0), _joined(extent, rows), _EMPTY)
    return pc.binary_join_element_wise(_joined(head, rows), sized, body, _EMPTY)


# -- the values of one kind -----------------------------------------------------------------------------------------


def _numbers(kind: str, arrow: pa.DataType) -> Any:
    """An encoder of numbers, which checks their range."""

    def values(array: Any) -> _FixedWidth:
        return _FixedWidth(kind, pc.fill_null(array.cast(arrow), 0).to_numpy(zero_copy_only=False))

    return values


def _since_epoch(kind: str, arrow: pa.DataType, unit: pa.DataType, epoch: int) -> Any:
    """An encoder of dates or times of day, counted from PostgreSQL's epoch."""

    def values(array: Any) -> _FixedWidth:
        whole = pc.fill_null(array.cast(unit).cast(arrow), 0).to_numpy(zero_copy_only=False)
        return _FixedWidth(kind, whole - epoch)

    return values


def _instants(array: Any) -> _FixedWidth:
    unit = pa.timestamp("us", array.type.tz)
    return _FixedWidth(">i8", pc.fill_null(array.cast(unit).cast(pa.int64()), 0).to_numpy() - _EPOCH_MICROSECONDS)


def _intervals(array: Any) -> _FixedWidth:
    """Intervals as microseconds; their days and months are 0."""
    whole = pc.fill_null(array.cast(pa.duration("us")).cast(pa.int64()), 0).to_numpy()
    return _FixedWidth(">i8", np.column_stack((whole, np.zeros_like(whole))), (2,))


def _bytes(array: Any) -> pa.LargeBinaryArray:
    return array.cast(pa.large_binary())


def _jsonb(array: Any) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(_JSONB, _bytes(array), _EMPTY)


def _uuids(array: Any) -> _FixedWidth:
    digits = pc.replace_substring(pc.fill_null(array, "0" * 32), "-", "")
    if not pc.all(pc.equal(pc.binary_length(digits), 32)).as_py():
        raise ValueError("a UUID has 32 hexadecimal digits")
    whole = bytes.fromhex(bytes(concatenated(digits.cast(pa.large_binary()))).decode())
    return _FixedWidth("V16", np.frombuffer(whole, "V16"))


def _decimals(array: Any) -> _FixedWidth:
    """Digits to the base of 10,000, for each row as many as the type may need; the server strips zeros at both ends."""
    whole = not pa.types.is_decimal(array.type)
    if whole:
        array = array.cast(pa.decimal128(19, 0))
    precision, scale = array.type.precision, array.type.scale
    limbs = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    limbs = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False)[:, None], limbs, 0)
    if whole or (precision <= _WORD_DIGITS and scale <= _WORD_SCALE):
        negative = limbs[:, 0] < 0
        size = np.where(negative, -limbs[:, 0], limbs[:, 0]).view(np.uint64)  # as uint64, -2**63 negated is right, too
    else:
        value = limbs[:, 1].astype(object) * (1 << 64) + limbs[:, 0].view(np.uint64).astype(object)
        negative = value < 0
        size = abs(value)
    kind = size.dtype.type
    unit, pad, base = kind(10**scale), kind(10 ** (-scale % 4)), kind(10_000)
    before, behind = -(-(precision - scale) // 4), -(-scale // 4)
    digits = np.empty((len(array), 4 + before + behind), np.int16)
    digits[:, 0], digits[:, 1], digits[:, 3] = before + behind, before - 1, scale
    digits[:, 2] = np.where(negative, _NEGATIVE, 0)
    for rest, first, last in ((size // unit, 4, 4 + before), (size % unit * pad, 4 + before, digits.shape[1])):
        left = rest
        for place in reversed(range(first, last)):
            digits[:, place] = left % base
            left = left // base
    return _FixedWidth(">i2", digits, (digits.shape[1],))


_VALUES: dict[str, Any] = {
    "boolean": _numbers("u1", pa.uint8()),
    "smallint": _numbers(">i2", pa.int16()),
    "integer": _numbers(">i4", pa.int32()),
    "bigint": _numbers(">i8", pa.int64()),
    "real": _numbers(">f4", pa.float32()),
    "double precision": _numbers(">f8", pa.float64()),
    "numeric": _decimals,
    "text": _bytes,
    "bytea": _bytes,
    "jsonb": _jsonb,
    "uuid": _uuids,
    "date": _since_epoch(">i4", pa.int32(), pa.date32(), _EPOCH_DAYS),
    "time": _since_epoch(">i8", pa.int64(), pa.time64("us"), 0),
    "timestamp": _instants,
    "interval": _intervals,
}
