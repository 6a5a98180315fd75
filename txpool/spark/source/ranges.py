"""Splits a read into partitions by ranges of a column, as Spark's JDBC source does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from txpool.config.properties import nearest
from txpool.spark.source.options import option_error
from txpool.spark.types.decoding import ReadColumn
from txpool.spark.types.identifiers import quoted


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(text)
    return number


def _local_timestamp(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(text)
    return value


def _instant(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _RangeType:
    """A type whose values can be split into ranges."""

    #: The type in SQL.
    name: str
    #: A bound from its text; ValueError or ArithmeticError if it is not one.
    parse: Callable[[str], Any]
    #: The SQL condition for values that can be a bound.
    finite: str = "true"


_FINITE = "{0} > '-infinity' and {0} < 'infinity'"
_IN_TIME = "{0} between '0001-01-02' and '9999-12-30'"
_RANGE_TYPES: Mapping[str, _RangeType] = {
    "int2": _RangeType("smallint", int),
    "int4": _RangeType("integer", int),
    "int8": _RangeType("bigint", int),
    "numeric": _RangeType("numeric", _number, _FINITE),
    "float4": _RangeType("real", _number, _FINITE),
    "float8": _RangeType("double precision", _number, _FINITE),
    "date": _RangeType("date", date.fromisoformat, _IN_TIME),
    "timestamp": _RangeType("timestamp", _local_timestamp, _IN_TIME),
    "timestamptz": _RangeType("timestamptz", _instant, _IN_TIME),
}


@dataclass(frozen=True, slots=True)
class Ranges:
    """A column, and the number of ranges between two bounds. The first and last range have the values beyond them."""

    column: str
    #: The lower bound as text; None for the least value in the table.
    lower: str | None
    #: The upper bound as text; None for the greatest value in the table.
    upper: str | None
    number: int

    def conditions(self, cursor: Any, relation: str, columns: Sequence[ReadColumn]) -> tuple[str, ...]:
        """One WHERE clause for each range. Each row fulfils exactly one of them; a NULL is in the first range.

        ProgrammingError if the column or a bound does not fit.
        """
        column = next((column for column in columns if column.name == self.column), None)
        if column is None:
            raise option_error(
                f"partitionColumn {self.column} is no column: {nearest(self.column, [known.name for known in columns])}"
            )
        kind = None if column.array or column.enum else _RANGE_TYPES.get(column.type)
        if kind is None:
            raise option_error(
                f"partitionColumn {column.name} is {column.spark.simpleString()}: it must be a number, a date or a "
                "timestamp"
            )
        name = quoted(column.name)
        bounds = self._bounds(cursor, relation, name, kind)
        boundaries = [] if bounds is None else _boundaries(*bounds, self.number)
        if not boundaries:
            return ("",)
        edges = [f"'{boundary}'::{kind.name}" for boundary in boundaries]
        between = [f" where {name} >= {edge} and {name} < {after}" for edge, after in pairwise(edges)]
        return (f" where {name} < {edges[0]} or {name} is null", *between, f" where {name} >= {edges[-1]}")

    def _bounds(self, cursor: Any, relation: str, name: str, kind: _RangeType) -> tuple[Any, Any] | None:
        """The lower and upper bound; None if there is no value in the column."""
        bounds = [_bound("lowerBound", self.lower, name, kind), _bound("upperBound", self.upper, name, kind)]
        if None in bounds:
            finite = kind.finite.format(name)
            cursor.execute(f"select min({name})::text, max({name})::text from {relation} where {finite}")  # noqa: S608
            found = cursor.fetchone()
            if None in found:
                return None
            bounds = [kind.parse(text) if bound is None else bound for bound, text in zip(bounds, found, strict=True)]
        lower, upper = bounds
        if lower > upper:
            raise option_error(f"lowerBound is {lower}, which is above upperBound, {upper}")
        return lower, upper


def _bound(option: str, text: str | None, name: str, kind: _RangeType) -> Any:
    try:
        return None if text is None else kind.parse(text.strip())
    except (ValueError, ArithmeticError):
        raise option_error(
            f"{option} is {text!r}, which is not a bound of type {kind.name}, the type of {name}"
        ) from None


def _boundaries(lower: Any, upper: Any, number: int) -> list[Any]:
    """The values at which one range ends and the next begins; fewer if two of them would be the same."""
    span = upper - lower
    if isinstance(span, int):
        boundaries = {lower + span * at // number for at in range(1, number)}
    else:
        boundaries = {lower + span * at / number for at in range(1, number)}
    return sorted(boundary for boundary in boundaries if boundary > lower)
