"""Encodes Arrow's record batches as INSERT statements, without a Python call for each value.

Every value is checked here, also for `binary`, which sends values as parameters.

Each column becomes an Arrow array of SQL literals, which Arrow joins to rows. Many rows make a statement, which is
shorter than what the server takes at once. Literals are such that the server converts none of them: a number has no
quotes, a decimal has some, and a double has an exponent, or it would be a decimal first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txpool.errors import DataError
from txpool.spark.types import checks
from txpool.spark.types.buffers import concatenated, hexadecimal, offsets_of
from txpool.spark.types.encoding import ColumnEncoding, misfit, require_kept

#: About how much of a batch is encoded at a time, so that the memory of a task does not grow with its rows.
_SLICE_BYTES = 8 << 20
_NULL = pa.scalar(b"NULL", pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())
_EXPONENT, _NOTHING = pa.scalar("e0", pa.large_string()), pa.scalar("", pa.large_string())
#: The kinds whose literals have no quotes, and those whose texts may have anything in them.
_UNQUOTED = frozenset({"number", "bit", "year", "float", "double"})
_ESCAPED = frozenset({"text", "char", "enum", "set"})
_QUOTE = pa.scalar(b"'", pa.large_binary())
_YEARS = 1901, 2155
_MOST = 2**63 - 1


def statements(
    batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding], head: bytes, limit: int, longest: int
) -> Iterator[bytes]:
    """INSERT statements with the rows of a batch, of about `limit` bytes; `head` is the text before the rows.

    A row that is longer has a statement of its own. DataError if a value does not fit into its column, or a row makes a
    statement of more than `longest` bytes.
    """
    rows = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        encoded = _rows(batch.slice(start, rows), encodings)
        text, ends = concatenated(encoded), offsets_of(encoded)
        ends = ends - ends[0]
        first, count = 0, len(ends) - 1
        while first < count:
            last = int(np.searchsorted(ends, ends[first] + limit, side="right")) - 1
            last = min(max(last, first + 1), count)
            size = int(ends[last] - ends[first]) + len(head)
            if size > longest:
                raise DataError(
                    f"a row has {size:,} bytes as SQL, and the server takes {longest:,} (max_allowed_packet): raise "
                    "that on the server. Nothing of the partition was written"
                )
            yield head + bytes(text[ends[first] + 1 : ends[last]])  # each row begins with a comma
            first = last


def _rows(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> pa.LargeBinaryArray:
    """The rows, each as `,(…)`."""
    pieces: list[Any] = []
    for number, (array, encoding) in enumerate(zip(batch.columns, encodings, strict=True)):
        try:
            require_kept(array, encoding)
            literals = _literals(array, encoding)
        except (pa.ArrowInvalid, ValueError) as error:
            raise misfit(encoding, error) from error
        if array.null_count:
            literals = pc.if_else(array.is_valid(), literals, _NULL)
        pieces += [pa.scalar(b"," if number else b",(", pa.large_binary()), literals]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b")", pa.large_binary()), _EMPTY)


def values_of(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """The values of a column as the server reads their texts, or as bytes. ValueError if it would change one."""
    return _VALUES[encoding.kind](array, encoding)


def _literals(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    values = values_of(array, encoding)
    if encoding.kind in _UNQUOTED:
        return values
    if encoding.kind == "binary":
        return pc.binary_join_element_wise(pa.scalar(b"x'", pa.large_binary()), hexadecimal(values), _QUOTE, _EMPTY)
    if encoding.kind in _ESCAPED:
        text = values.cast(pa.large_string())
        for character, escaped in (("\\", "\\\\"), ("'", "\\'")):
            if pc.any(pc.match_substring(text, character)).as_py():
                text = pc.replace_substring(text, character, escaped)
        values = text.cast(pa.large_binary())
    return pc.binary_join_element_wise(_QUOTE, values, _QUOTE, _EMPTY)


def whole_numbers_of(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """The values of a column of kind number, bit or year. ValueError if the server would take one for another."""
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    if encoding.kind == "year":
        checks.require_between(array, *_YEARS, "a YEAR is from 1901 to 2155, and the server would take others for such")
    elif encoding.kind == "bit":
        checks.require_between(array, 0, _MOST, "a BIT has no sign, and the server would take another number")
    return array


def _whole_numbers(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    return whole_numbers_of(array, encoding).cast(pa.large_string()).cast(pa.large_binary())


def floats_of(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """The values of a column of kind float or double. ValueError if one is no number."""
    if encoding.kind == "double":
        array = array.cast(pa.float64())
    if not pc.all(pc.is_finite(pc.fill_null(array, 0))).as_py():
        raise ValueError("neither NaN nor an infinity can be stored")
    return array


def _floats(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    # The server reads a double, and rounds it to a FLOAT: of the greatest one, the shortest text would be beyond.
    text = floats_of(array, encoding).cast(pa.float64()).cast(pa.large_string())
    exact = pc.if_else(pc.match_substring(text, "e"), text, pc.binary_join_element_wise(text, _EXPONENT, _NOTHING))
    return exact.cast(pa.large_binary())


def _texts(array: pa.Array, _: ColumnEncoding) -> pa.Array:
    return array.cast(pa.large_string()).cast(pa.large_binary())


def _chars(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    if pc.any(pc.ends_with(array.cast(pa.large_string()), " ")).as_py():
        raise ValueError("CHAR loses spaces at the end: declare it VARCHAR, or use rtrim()")
    return _texts(array, encoding)


def _labels(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    _require_labels(array, encoding.labels)
    return _texts(array, encoding)


def _label_sets(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    filled = array.filter(pc.greater(pc.binary_length(array), 0))
    _require_labels(pc.list_flatten(pc.split_pattern(filled.cast(pa.large_string()), ",")), encoding.labels)
    return _texts(array, encoding)


def _require_labels(texts: pa.Array, labels: Sequence[str]) -> None:
    """ValueError if the server would take a text for another: a number for a label's place, one case for another."""
    if not pc.all(pc.is_in(texts.cast(pa.large_string()).drop_null(), pa.array(labels, pa.large_string()))).as_py():
        raise ValueError(f"it is none of the column's labels, {', '.join(map(repr, labels))}")


def _bytes(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """`encoding.array` says that the server would pad values to the length `encoding.oid`."""
    if encoding.array and not pc.all(pc.equal(pc.binary_length(array), encoding.oid)).as_py():
        raise ValueError(f"BINARY({encoding.oid}) would pad it with zero bytes: declare VARBINARY, or pad it before")
    return pc.fill_null(array, b"").cast(pa.large_binary())


def _dates(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    checks.require_days(array)
    return _texts(array, encoding)


def _timestamps(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """Timestamps without time zone as they are, and others in UTC, which is the session's.

    `encoding.array` says that a server without explicit_defaults_for_timestamp would write the current time for NULL.
    """
    if encoding.array and array.null_count:
        raise ValueError("the column cannot be null")
    checks.require_moments(array, encoding.oid)
    return _texts(array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us")), encoding)


def _times(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    array = array.cast(pa.time64("us"))
    checks.require_fraction(array.cast(pa.int64()), encoding.oid)
    return _texts(array, encoding)


_VALUES: dict[str, Any] = {
    "number": _whole_numbers,
    "bit": _whole_numbers,
    "year": _whole_numbers,
    "float": _floats,
    "double": _floats,
    "decimal": _texts,
    "text": _texts,
    "char": _chars,
    "enum": _labels,
    "set": _label_sets,
    "binary": _bytes,
    "date": _dates,
    "time": _times,
    "timestamp": _timestamps,
}
