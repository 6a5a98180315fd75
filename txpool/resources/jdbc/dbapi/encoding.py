"""Parameters as the bytes that the Java helper reads: one column for each place, with all its values of a batch."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, Final
from uuid import UUID

from txpool.resources.jdbc.dbapi import kinds
from txpool.resources.jdbc.dbapi.errors import DataError, ProgrammingError

_INT: Final = Struct("<i")
_PART: Final = Struct("<bi")
_FLAG_AND_SIZE: Final = Struct("<bi")
_ALL: Final = -1
#: Java's zones are at most so far from UTC.
_FARTHEST: Final = timedelta(hours=18)
_MICROSECOND: Final = timedelta(microseconds=1)


def encode_columns(columns: Iterable[Sequence[Any]]) -> list[bytes]:
    """The columns' bytes, in pieces. DataError: a value that cannot be sent as it is; ProgrammingError: its type."""
    pieces: list[bytes] = []
    for values in columns:
        _encode_column(values, pieces)
    return pieces


def _encode_column(values: Sequence[Any], pieces: list[bytes]) -> None:
    types = set(map(type, values))
    if len(types) == 1:
        (only,) = types
        kind = _PLAIN.get(only)
        if kind is not None:
            pieces.append(_INT.pack(1))
            _encode_part(kind, values, b"", _ALL, pieces)
            return
    parts: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        parts.setdefault(_kind_of(value), []).append(place)
    pieces.append(_INT.pack(len(parts)))
    for kind, places in parts.items():
        if len(parts) == 1:
            _encode_part(kind, values, b"", _ALL, pieces)
        else:
            _encode_part(kind, [values[each] for each in places], _packed("i", places), len(places), pieces)


def _encode_part(kind: int, values: Sequence[Any], places: bytes, count: int, pieces: list[bytes]) -> None:
    kind, payload = _ENCODERS[kind](values)
    pieces.append(_PART.pack(kind, count))
    pieces.append(places)
    pieces.append(payload)


# Types whose values are all of one kind.
_PLAIN: Final[dict[type, int]] = {
    int: kinds.LONG,
    str: kinds.TEXT,
    float: kinds.DOUBLE,
    bool: kinds.BOOLEAN,
    bytes: kinds.BYTES,
    type(None): kinds.NULL,
}
# Also for what derives from them: the most specific first.
_BASES: Final[tuple[tuple[type | tuple[type, ...], int | Callable[[Any], int]], ...]] = (
    (datetime, lambda value: kinds.DATETIME if value.tzinfo is None else kinds.ZONED_DATETIME),
    (date, kinds.DATE),
    (time, lambda value: kinds.TIME if value.tzinfo is None else kinds.ZONED_TIME),
    # Java's decimals have neither NaN nor infinity; databases that have them take them from floating point.
    (Decimal, lambda value: kinds.DECIMAL if value.is_finite() else kinds.DOUBLE),
    (bool, kinds.BOOLEAN),
    (int, kinds.LONG),
    (str, kinds.TEXT),
    (float, kinds.DOUBLE),
    ((bytes, bytearray, memoryview), kinds.BYTES),
    (timedelta, kinds.INTERVAL),
    (UUID, kinds.UUID),
    ((list, tuple), kinds.ARRAY),
)


def _kind_of(value: Any) -> int:
    kind = _PLAIN.get(type(value))
    if kind is not None:
        return kind
    for base, chosen in _BASES:
        if isinstance(value, base):
            return chosen if isinstance(chosen, int) else chosen(value)
    if hasattr(value, "__index__"):  # numpy's integers
        return kinds.LONG
    advice = ": send json.dumps() of it" if isinstance(value, dict) else ""
    raise ProgrammingError(f"a parameter of type {type(value).__name__} cannot be sent over JDBC{advice}")


def _packed(code: str, values: Sequence[Any]) -> bytes:
    found = array(code, values)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _nulls(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.NULL, b""


def _whole(values: Sequence[Any]) -> tuple[int, bytes]:
    try:
        return kinds.INT, _packed("i", values)
    except OverflowError:
        pass
    try:
        return kinds.LONG, _packed("q", values)
    except OverflowError:
        return kinds.DECIMAL, _texts([str(int(each)) for each in values])


def _doubles(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.DOUBLE, _packed("d", values)


def _booleans(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.BOOLEAN, bytes(values)


def _strings(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.TEXT, _texts(values)


def _binaries(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.BYTES, _sized([bytes(each) for each in values])


def _by(kind: int, text: Callable[[Any], str]) -> Callable[[Sequence[Any]], tuple[int, bytes]]:
    return lambda values: (kind, _texts([text(each) for each in values]))


def _texts(values: Sequence[str]) -> bytes:
    joined = "\0".join(values)
    try:
        data = joined.encode()
        if joined.count("\0") == len(values) - 1:
            return _FLAG_AND_SIZE.pack(0, len(data)) + data
        return b"\1" + _sized([each.encode() for each in values])
    except UnicodeEncodeError as error:
        code = ord(joined[error.start])
        raise DataError(f"a parameter has the surrogate \\u{code:04x} alone, which is no character") from None


def _sized(values: Sequence[bytes]) -> bytes:
    return _packed("i", list(map(len, values))) + b"".join(values)


def _arrays(values: Sequence[Any]) -> tuple[int, bytes]:
    return kinds.ARRAY, _sized([b"".join([_INT.pack(len(each)), *encode_columns([each])]) for each in values])


def _datetime_text(value: datetime) -> str:
    if getattr(value, "nanosecond", 0):
        raise DataError(f"{value} has nanoseconds, which a Python datetime has not: round it")
    return _checked(value)


def _zoned_text(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise DataError(f"the zone of {value!r} gives it no offset from UTC")
    if offset.microseconds or abs(offset) > _FARTHEST:
        value = value.astimezone(UTC)
    return _datetime_text(value)


def _zoned_time_text(value: time) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise DataError(f"the zone of {value!r} gives it no offset from UTC without a date: send a datetime")
    if offset.microseconds or abs(offset) > _FARTHEST:
        raise DataError(f"the offset of {value!r} from UTC cannot be sent")
    return value.isoformat()


def _checked(value: datetime) -> str:
    text = value.isoformat()
    if not text[:1].isdigit():  # pandas has a datetime that is none
        raise DataError(f"{value!r} is no point in time: send None")
    return text


def _decimal_text(value: Decimal) -> str:
    return str(value)


def _interval_text(value: timedelta) -> str:
    """ISO 8601, as Java has durations."""
    total = value // _MICROSECOND
    seconds, microseconds = divmod(abs(total), 1_000_000)
    return f"PT{'-' if total < 0 else ''}{seconds}.{microseconds:06d}S"


_ENCODERS: Final[dict[int, Callable[[Sequence[Any]], tuple[int, bytes]]]] = {
    kinds.NULL: _nulls,
    kinds.LONG: _whole,
    kinds.DOUBLE: _doubles,
    kinds.BOOLEAN: _booleans,
    kinds.TEXT: _strings,
    kinds.BYTES: _binaries,
    kinds.DECIMAL: _by(kinds.DECIMAL, _decimal_text),
    kinds.DATE: _by(kinds.DATE, date.isoformat),
    kinds.TIME: _by(kinds.TIME, time.isoformat),
    kinds.ZONED_TIME: _by(kinds.ZONED_TIME, _zoned_time_text),
    kinds.DATETIME: _by(kinds.DATETIME, _datetime_text),
    kinds.ZONED_DATETIME: _by(kinds.ZONED_DATETIME, _zoned_text),
    kinds.UUID: _by(kinds.UUID, str),
    kinds.INTERVAL: _by(kinds.INTERVAL, _interval_text),
    kinds.ARRAY: _arrays,
}
