"""PEP 249's type objects and constructors, for every driver."""

from __future__ import annotations

from datetime import date, datetime
from datetime import time as time_of_day
from types import ModuleType
from typing import Any

# A dict, as an ordered set: each step is one operation, without a lock that a fork could leave locked.
_drivers: dict[ModuleType, None] = {}


def add_driver(module: ModuleType) -> None:
    """Let the type objects equal those of another driver's PEP 249 module."""
    _drivers[module] = None


class TypeObject:
    """Equal to each type code, in a cursor's `description`, that equals the driver's type object of this name.

    A driver without type codes has None there, which equals none. If two drivers that are in use give one number to
    different types, compare with the driver's own type object.
    """

    __slots__ = ("name",)

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        if self is other or other is None:
            return self is other
        return any(_same(getattr(module, self.name, None), other) for module in list(_drivers))

    def __repr__(self) -> str:
        return f"txpool.{self.name}"


def _same(own: object, other: object) -> bool:
    try:
        return bool(own == other)
    except TypeError:  # mysqlclient's are sets, and another driver's type object is no member of one
        return False


class TypeCodes(frozenset[Any]):
    """A driver's own type object: equal to each type code that it has as a member."""

    __slots__ = ()

    __hash__ = frozenset.__hash__

    def __eq__(self, other: object) -> bool:
        return other in self if isinstance(other, str | int) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


STRING = TypeObject("STRING")
BINARY = TypeObject("BINARY")
NUMBER = TypeObject("NUMBER")
DATETIME = TypeObject("DATETIME")
ROWID = TypeObject("ROWID")

Date = date
Time = time_of_day
Timestamp = datetime


def DateFromTicks(ticks: float) -> date:
    """The date at this number of seconds since the epoch, in local time."""
    return date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> time_of_day:
    """The time of day at this number of seconds since the epoch, in local time."""
    return datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """The local time, without a zone, at this number of seconds since the epoch, as PEP 249 shows it.

    Into a column with a zone, write `datetime.fromtimestamp(ticks, UTC)` instead: it does not depend on the session's.
    """
    return datetime.fromtimestamp(ticks)


def Binary(value: bytes | bytearray | memoryview) -> bytes:
    """Bytes, which every driver takes for a binary value."""
    return bytes(memoryview(value))
