"""COPY's binary format, which pays for numbers, dates and times; what often stands beside them has a form in it, too.

A row consists of its fields, each a length and a value. Adjacent fields of fixed width are put into one NumPy record;
Arrow joins these records with the values of variable length. So a batch takes a few calls in C for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txpool.spark.types.buffers import concatenated

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())
# PostgreSQL counts days and microseconds from 2000-01-01.
_EPOCH_DAYS = 10_957
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
#: The largest precision and scale of a decimal whose digits can be computed in 64 bits.
WORD_DIGITS, WORD_SCALE = 18, 16
_NEGATIVE = 0x4000
_UUID = r"\A(?:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32})\z"


@dataclass(frozen=True, slots=True)
class _FixedWidth:
    """Values of a fixed width, for one field of a NumPy record with this `kind` and `shape`."""

    kind: str
    values: Any
    shape: tuple[int, ...] = ()


_Values: TypeAlias = _FixedWidth | Any  #: Values of a fixed width, or an Arrow array with values of variable length.


def field(array: pa.Array, kind: str) -> list[_Values]:
    """The lengths and values of a column. ValueError if a value does not fit."""
    value = _VALUES[kind](array)
    if not isinstance(value, _FixedWidth):
        lengths = pc.binary_length(value)
        if array.null_count:
            lengths, value = pc.fill_null(lengths, -1), pc.fill_null(value, _EMPTY)
        return [_FixedWidth(">i4", lengths.to_numpy()), value]
    pieces: list[_Values] = [_FixedWidth(">i4", np.dtype((value.kind, value.shape)).itemsize), value]
    if not array.null_count:
        return pieces
    return [pc.if_else(array.is_valid(), _joined(pieces, len(array)), _NULL)]


def rows(fields: Sequence[list[_Values]], number: int) -> memoryview:
    """So many rows of the fields."""
    head: list[_Values] = [_FixedWidth(">i2", len(fields))]
    return concatenated(_joined(sum(fields, head), number))


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
    offsets = np.arange(rows + 1, dtype=np.int64) * records.dtype.itemsize
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(records)]
    )


def _numbers(kind: str, *arrow: pa.DataType, epoch: int = 0) -> Callable[[Any], _FixedWidth]:
    """An encoder of numbers, of which each cast checks the range; dates and times count from PostgreSQL's epoch."""

    def values(array: pa.Array) -> _FixedWidth:
        for each in arrow:
            array = array.cast(each)
        numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return _FixedWidth(kind, numbers - epoch if epoch else numbers)

    return values


def _instants(array: pa.Array) -> _FixedWidth:
    return _numbers(">i8", pa.timestamp("us", array.type.tz), pa.int64(), epoch=_EPOCH_MICROSECONDS)(array)


def _bytes(array: pa.Array) -> pa.LargeBinaryArray:
    return array.cast(pa.large_binary())


def _uuids(array: pa.Array) -> _FixedWidth:
    given = pc.fill_null(array, "0" * 32)
    if not pc.all(pc.match_substring_regex(given, _UUID)).as_py():
        raise ValueError("a uuid has 32 hexadecimal digits, in groups of 8, 4, 4, 4 and 12, or in one")
    digits = pc.replace_substring(given, "-", "").cast(pa.large_binary())
    return _FixedWidth("V16", np.frombuffer(bytes.fromhex(bytes(concatenated(digits)).decode()), "V16"))


def _decimals(array: pa.Array) -> _FixedWidth:
    """Digits to the base of 10,000, for each row as many as the type may need; the server strips zeros at both ends."""
    whole = not pa.types.is_decimal(array.type)
    if whole:
        array = array.cast(pa.decimal128(19, 0))
    precision, scale = array.type.precision, array.type.scale
    limbs = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    numbers = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), limbs[:, 0], 0)
    negative = numbers < 0
    size = np.where(negative, -numbers, numbers).view(np.uint64)  # as uint64, -2**63 negated is right, too
    if not whole and (precision > WORD_DIGITS or scale > WORD_SCALE or (size >= 10**precision).any()):
        raise ValueError(f"a decimal has more than {precision} digits")
    unit, pad, base = np.uint64(10**scale), np.uint64(10 ** (-scale % 4)), np.uint64(10_000)
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
    "date": _numbers(">i4", pa.date32(), pa.int32(), epoch=_EPOCH_DAYS),
    "time": _numbers(">i8", pa.time64("us"), pa.int64()),
    "timestamp": _instants,
    "uuid": _uuids,
}
