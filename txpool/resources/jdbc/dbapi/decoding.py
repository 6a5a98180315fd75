"""Rows out of the bytes that the Java helper writes: block by block, and column by column within a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from struct import Struct, unpack_from
from typing import Any, Final, NamedTuple
from uuid import UUID

from txpool.resources.jdbc.dbapi import kinds
from txpool.resources.jdbc.dbapi.errors import DataError
from txpool.resources.jdbc.dbapi.type_objects import type_code

_INT: Final = Struct("<i")
_COUNT_AND_MORE: Final = Struct("<ib")
_KIND_AND_COUNT: Final = Struct("<bi")
_COLUMN: Final = Struct("<biii")
_TWO_BOOLEANS: Final = {0: False, 1: True}
# PostgreSQL's and ISO 8601's texts of an interval.
_POSTGRES: Final = re.compile(r"(?:(-?\+?\d+) days? ?)?(?:([-+]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?")
_ISO: Final = re.compile(r"P(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d+))?S)?)?")


class Header(NamedTuple):
    """The columns of a result."""

    kinds: tuple[int, ...]
    names: tuple[str, ...]
    #: As PEP 249 has it.
    description: tuple[tuple[Any, ...], ...]


class RowBatch(NamedTuple):
    """Some rows of a result."""

    rows: list[tuple[Any, ...]]
    #: Whether the result may have further rows.
    more: bool
    #: What the row after these cannot be read for.
    failure: DataError | None


@lru_cache(maxsize=256)
def decode_header(data: bytes) -> Header:
    """The columns that a header tells of; its bytes are the same for each execution of a statement."""
    (count,) = _INT.unpack_from(data)
    place = 4
    found = []
    for _ in range(count):
        kind, jdbc_type, precision, scale = _COLUMN.unpack_from(data, place)
        type_name, place = _text(data, place + _COLUMN.size)
        name, place = _text(data, place)
        has_digits = kind == kinds.DECIMAL
        found.append(
            (
                kind,
                name,
                type_code(kind, jdbc_type, type_name),
                precision if has_digits else None,
                scale if has_digits else None,
            )
        )
    description = tuple((name, code, None, None, precision, scale, None) for _, name, code, precision, scale in found)
    return Header(tuple(each[0] for each in found), tuple(each[1] for each in found), description)


def _text(data: bytes, place: int) -> tuple[str, int]:
    (size,) = _INT.unpack_from(data, place)
    place += 4
    return data[place : place + size].decode("utf-8", "surrogatepass"), place + size


def decode_block(header: Header, data: bytes, place: int) -> RowBatch:
    """The rows of a block, up to the first that Python's classes cannot hold."""
    count, more = _COUNT_AND_MORE.unpack_from(data, place)
    place += _COUNT_AND_MORE.size
    columns = []
    good, failure = count, None
    for kind, name in zip(header.kinds, header.names, strict=True):
        try:
            values, place = _decode_column(kind, data, place, count)
        except _Unreadable as error:
            values, place = error.values, error.end
            if error.row < good:
                good = error.row
                failure = DataError(f"column {name}: {error}")
        columns.append(values)
    rows = list(zip(*columns, strict=True)) if columns else [()] * count
    return RowBatch(rows[:good] if good < count else rows, bool(more), failure)


class _Unreadable(Exception):
    """A value that no Python object stands for."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row
        self.values: list[Any] = []
        self.end = 0


def _decode_column(kind: int, data: bytes, place: int, count: int) -> tuple[Sequence[Any], int]:
    (null_count,) = _INT.unpack_from(data, place)
    place += 4
    nulls = unpack_from(f"<{null_count}i", data, place) if null_count else ()
    place += 4 * null_count
    (size,) = _INT.unpack_from(data, place)
    place += 4
    end = place + size
    if not count:
        return (), end
    try:
        values = _DECODERS[kind](data, place, end, count)
        if not nulls:
            parser = _PARSERS.get(kind)
            return (values if parser is None else _parsed(parser, values)), end
        values = list(values)
        for each in nulls:
            values[each] = None
        parser = _PARSERS.get(kind)
        if parser is not None:
            values = _parsed(lambda value: None if value is None else parser(value), values)
    except _Unreadable as error:
        error.end = end
        raise
    return values, end


def _parsed(parser: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    try:
        return list(map(parser, values))
    except (ValueError, ArithmeticError):
        pass
    found: list[Any] = []
    for row, value in enumerate(values):
        try:
            found.append(parser(value))
        except (ValueError, ArithmeticError):
            shown = str(value).removeprefix("!")
            advice = "Python's class cannot hold it as it is: cast it to text, or to another type, in the statement"
            error = _Unreadable(f"the value {shown!r} cannot be read: {advice}", row)
            error.values = [*found, *([None] * (len(values) - row))]
            raise error from None
    return found


def _longs(data: bytes, place: int, end: int, count: int) -> Sequence[Any]:
    return unpack_from(f"<{count}q", data, place)


def _doubles(data: bytes, place: int, end: int, count: int) -> Sequence[Any]:
    return unpack_from(f"<{count}d", data, place)


def _booleans(data: bytes, place: int, end: int, count: int) -> Sequence[Any]:
    return unpack_from(f"<{count}?", data, place)


def _texts(data: bytes, place: int, end: int, count: int) -> Sequence[Any]:
    if not data[place]:
        return data[place + 1 : end - 1].decode("utf-8", "surrogatepass").split("\0")
    lengths = unpack_from(f"<{count}i", data, place + 1)
    place += 1 + 4 * count
    found = []
    for length in lengths:
        found.append(data[place : place + length].decode("utf-8", "surrogatepass"))
        place += length + 1
    return found


def _binaries(data: bytes, place: int, end: int, count: int) -> Sequence[Any]:
    lengths = unpack_from(f"<{count}i", data, place)
    place += 4 * count
    found = []
    for length in lengths:
        found.append(data[place : place + length])
        place += length
    return found


def _array(data: bytes) -> list[Any]:
    kind, count = _KIND_AND_COUNT.unpack_from(data)
    try:
        values, _ = _decode_column(kind, data, _KIND_AND_COUNT.size, count)
    except _Unreadable as error:
        raise ValueError(str(error)) from None
    return list(values)


def _small_boolean(value: int) -> int:
    return _TWO_BOOLEANS.get(value, value)


def _interval(text: str) -> timedelta:
    """ValueError if it has months or years, which are no number of days."""
    found = _ISO.fullmatch(text)
    if found is not None:
        days, hours, minutes, sign, seconds, fraction = found.groups()
        exact = timedelta(seconds=int(seconds or 0), microseconds=_microseconds(fraction))
        whole = timedelta(days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0))
        return whole - exact if sign else whole + exact
    found = _POSTGRES.fullmatch(text)
    if not text or found is None:
        raise ValueError(text)
    days, sign, hours, minutes, seconds, fraction = found.groups()
    clock = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0))
    clock += timedelta(microseconds=_microseconds(fraction))
    return timedelta(days=int(days or 0)) + (-clock if sign == "-" else clock)


def _microseconds(fraction: str | None) -> int:
    if fraction is None:
        return 0
    if len(fraction) > 6:
        raise ValueError(fraction)
    return int(fraction.ljust(6, "0"))


_DECODERS: Final[dict[int, Callable[[bytes, int, int, int], Sequence[Any]]]] = {
    kinds.LONG: _longs,
    kinds.SMALL_BOOLEAN: _longs,
    kinds.DOUBLE: _doubles,
    kinds.BOOLEAN: _booleans,
    kinds.BYTES: _binaries,
    kinds.ARRAY: _binaries,
    **dict.fromkeys(
        (
            kinds.TEXT,
            kinds.DECIMAL,
            kinds.INTEGER,
            kinds.DATE,
            kinds.TIME,
            kinds.DATETIME,
            kinds.UUID,
            kinds.INTERVAL,
        ),
        _texts,
    ),
}
_PARSERS: Final[dict[int, Callable[[Any], Any]]] = {
    kinds.SMALL_BOOLEAN: _small_boolean,
    kinds.DECIMAL: Decimal,
    kinds.INTEGER: int,
    kinds.DATE: date.fromisoformat,
    kinds.TIME: time.fromisoformat,
    kinds.DATETIME: datetime.fromisoformat,
    kinds.UUID: UUID,
    kinds.INTERVAL: _interval,
    kinds.ARRAY: _array,
}
