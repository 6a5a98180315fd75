"""The partitions of a read: ranges of a column, as Spark's JDBC source makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from txpool.config.properties import nearest
from txpool.errors import ProgrammingError
from txpool.spark.table.target import quoted
from txpool.spark.types.decoding import ReadColumn


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(text)
    return number


def _clock(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(text)
    return value


def _instant(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Scale:
    """A type whose values can be cut into ranges: how a bound is read, and which values may be one."""

    name: str
    read: Callable[[str], Any]
    finite: str = "true"


_FINITE = "{0} > '-infinity' and {0} < 'infinity'"
_IN_TIME = "{0} between '0001-01-02' and '9999-12-30'"
_SCALES: Mapping[str, _Scale] = {
    "int2": _Scale("smallint", int),
    "int4": _Scale("integer", int),
    "int8": _Scale("bigint", int),
    "numeric": _Scale("numeric", _number, _FINITE),
    "float4": _Scale("real", _number, _FINITE),
    "float8": _Scale("double precision", _number, _FINITE),
    "date": _Scale("date", date.fromisoformat, _IN_TIME),
    "timestamp": _Scale("timestamp", _clock, _IN_TIME),
    "timestamptz": _Scale("timestamptz", _instant, _IN_TIME),
}


@dataclass(frozen=True, slots=True)
class Ranges:
    """A column, and how many ranges it is cut into between two bounds; what is beyond them is in the outer ones."""

    column: str
    #: As text; None where the database finds the least or greatest value itself.
    lower: str | None
    upper: str | None
    number: int

    def conditions(self, cursor: Any, origin: str, columns: Sequence[ReadColumn]) -> tuple[str, ...]:
        """Each row fulfils exactly one of them, whatever the bounds are; NULL the first. ProgrammingError."""
        column = next((column for column in columns if column.name == self.column), None)
        if column is None:
            raise option_error(
                f"partitionColumn {self.column} is no column: {nearest(self.column, [each.name for each in columns])}"
            )
        scale = None if column.array or column.enum else _SCALES.get(column.type)
        if scale is None:
            kind = column.spark.simpleString()
            raise option_error(f"partitionColumn {column.name} is {kind}: it must be a number, a date or a timestamp")
        name = quoted(column.name)
        bounds = self._bounds(cursor, origin, name, scale)
        cuts = [] if bounds is None else _cuts(*bounds, self.number)
        if not cuts:
            return ("",)
        edges = [f"'{cut}'::{scale.name}" for cut in cuts]
        between = [f" where {name} >= {edge} and {name} < {after}" for edge, after in pairwise(edges)]
        return (f" where {name} < {edges[0]} or {name} is null", *between, f" where {name} >= {edges[-1]}")

    def _bounds(self, cursor: Any, origin: str, name: str, scale: _Scale) -> tuple[Any, Any] | None:
        """None where there is no value to find."""
        bounds = [_bound("lowerBound", self.lower, name, scale), _bound("upperBound", self.upper, name, scale)]
        if None in bounds:
            finite = scale.finite.format(name)
            cursor.execute(f"select min({name})::text, max({name})::text from {origin} where {finite}")  # noqa: S608
            found = cursor.fetchone()
            if None in found:
                return None
            bounds = [scale.read(text) if bound is None else bound for bound, text in zip(bounds, found, strict=True)]
        lower, upper = bounds
        if lower > upper:
            raise option_error(f"lowerBound is {lower}, which is above upperBound, {upper}")
        return lower, upper


def _bound(option: str, text: str | None, name: str, scale: _Scale) -> Any:
    try:
        return None if text is None else scale.read(text.strip())
    except (ValueError, ArithmeticError):
        raise option_error(f"{option} is {text!r}, which is no {scale.name}, as {name} is") from None


def _cuts(lower: Any, upper: Any, number: int) -> list[Any]:
    """Where one range ends and the next begins; fewer where there is no value between two."""
    span = upper - lower
    if isinstance(span, int):
        cuts = {lower + span * at // number for at in range(1, number)}
    else:
        cuts = {lower + span * at / number for at in range(1, number)}
    return sorted(cut for cut in cuts if cut > lower)


def option_error(what: str) -> ProgrammingError:
    """An error of whoever wrote the options."""
    return ProgrammingError(f"{what}. Nothing was read.")
