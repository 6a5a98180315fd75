"""Values of all of Spark's types that hypothesis makes, and what each target reads of them.

TXPOOL_VALUE_ROWS=100000 has so many rows a target instead of 2,000, and TXPOOL_VALUE_SEED repeats a run.
"""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

ROWS = int(os.environ.get("TXPOOL_VALUE_ROWS", "2000"))
SEED = os.environ.get("TXPOOL_VALUE_SEED") or secrets.token_hex(4)
_AT_ONCE = 25
_HOLES = 0.1
#: How many values hypothesis makes of a kind: the rows are combinations of them.
_DISTINCT = max(250, ROWS // 20)

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Africa/Monrovia", "Asia/Kolkata")
_EPOCH, _DAY = datetime(1970, 1, 1), date(1970, 1, 1)


def micros(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)


def days(value: date) -> int:
    return (value - _DAY).days


def isoformat(value: datetime) -> str:
    return value.isoformat(sep=" ")


@dataclass(frozen=True)
class Kind:
    """A type of Spark's, how a value of it is made, and how it is read."""

    #: Of the plain value, which createDataFrame takes.
    plain: str
    values: st.SearchStrategy[Any]
    #: The plain value of a value.
    send: Callable[[Any], Any] = lambda value: value
    #: The expression of the column, of the plain one {0}.
    cast: str = "{0}"
    #: What is found of a value that arrived.
    found: Callable[[Any], Any] = lambda value: value
    #: The type of the target's column.
    declared: str = ""
    #: What the target's client selects.
    read: str = "{0}"


def whole(bits: int) -> st.SearchStrategy[int]:
    ends = st.sampled_from([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, -1])
    return ends | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda units: Decimal(f"{units}E-{scale}"))


#: No NUL, which PostgreSQL has not, and no U+FFFD, which nested data have not; a surrogate is no character.
_CHARACTERS = st.characters(exclude_characters="\0\ufffd", exclude_categories=("Cs",))
TEXTS = st.text(_CHARACTERS, max_size=30) | st.sampled_from(
    ["", " ", "  x ", "\\N", "NULL", "{}", '"', "\\.", "a\r\nb\t"]
)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
CLOCKS = st.datetimes() | st.sampled_from([datetime.min, datetime.max])
RECENT = st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 18))
_NAMES = st.text(string.ascii_letters, min_size=1, max_size=3)
DOCUMENTS = st.fixed_dictionaries(
    {
        "n": whole(64),
        "d": st.floats() | st.none(),
        "s": TEXTS | st.none(),
        "l": st.lists(TEXTS | st.none(), max_size=3),
        "m": st.dictionaries(_NAMES, whole(32) | st.none(), max_size=3),
        "at": MOMENTS | st.none(),
    }
)
_FIELDS = ("n", "d", "s", "l", "m", "at")
_DOCUMENT = """if({0} is null, null, named_struct('n', {0}.n, 'd', {0}.d, 's', {0}.s, 'l', {0}.l, 'm', {0}.m,
    'at', timestamp_micros({0}.at)))"""
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)

#: By name; which target has which of them, and as what, is the target's.
KINDS: Mapping[str, Kind] = {
    "yes": Kind("boolean", st.booleans()),
    "tiny": Kind("tinyint", whole(8)),
    "short": Kind("smallint", whole(16)),
    "normal": Kind("int", whole(32)),
    "large": Kind("bigint", whole(64)),
    "single": Kind("float", st.floats(width=32)),
    "double": Kind("double", st.floats() | st.sampled_from([-0.0, 5e-324, 1e300])),
    "price": Kind("decimal(10, 2)", decimals(10, 2)),
    "small": Kind("decimal(18, 18)", decimals(18, 18)),
    "widest": Kind("decimal(38, 10)", decimals(38, 10)),
    "name": Kind("string", TEXTS),
    "code": Kind("string", st.text(_CHARACTERS, max_size=8)),
    "raw": Kind("binary", st.binary(max_size=40), bytearray),
    "day": Kind("int", st.dates() | st.sampled_from([date.min, date.max]), days, "date_from_unix_date({0})"),
    "clock": Kind(
        "string",
        st.datetimes() | st.sampled_from([datetime.min, datetime.max]),
        isoformat,
        "cast({0} as timestamp_ntz)",
    ),
    "instant": Kind("bigint", MOMENTS, micros, "timestamp_micros({0})"),
    "recent": Kind("bigint", RECENT, micros, "timestamp_micros({0})"),
    "hour": Kind("string", st.times(), time.isoformat, "cast({0} as time(6))"),
    "lasted": Kind(
        "string",
        st.integers(-(10**17), 10**17),
        lambda value: f"{'-' if value < 0 else ''}{abs(value) // 10**6}.{abs(value) % 10**6:06}",
        "make_dt_interval(0, 0, 0, cast({0} as decimal(18, 6)))",
    ),
    "key": Kind("string", st.uuids().map(str)),
    "tree": Kind(
        "struct<n: bigint, d: double, s: string, l: array<string>, m: map<string, int>, at: bigint>",
        DOCUMENTS,
        lambda value: tuple((value | {"at": value["at"] and micros(value["at"])})[name] for name in _FIELDS),
        _DOCUMENT,
        lambda value: (
            value
            | {"d": json_float(value["d"]), "at": value["at"] and f"{value['at'].isoformat(timespec='microseconds')}Z"}
        ),
    ),
    "any": Kind("string", _ANYTHING, json.dumps, "parse_json({0})"),
    "numbers": Kind("array<bigint>", st.lists(whole(64) | st.none(), max_size=4)),
    "words": Kind("array<string>", st.lists(TEXTS | st.none(), max_size=4)),
    "reals": Kind("array<double>", st.lists(st.floats() | st.none(), max_size=4)),
    "prices": Kind("array<decimal(20, 4)>", st.lists(decimals(20, 4) | st.none(), max_size=4)),
    "blobs": Kind("array<binary>", st.lists(st.binary(max_size=9), max_size=3), lambda value: [*map(bytearray, value)]),
    "days": Kind(
        "array<int>",
        st.lists(st.dates() | st.none(), max_size=4),
        lambda value: [None if each is None else days(each) for each in value],
        "transform({0}, e -> date_from_unix_date(e))",
    ),
    "clocks": Kind(
        "array<string>",
        st.lists(st.datetimes(), max_size=4),
        lambda value: [*map(isoformat, value)],
        "transform({0}, e -> cast(e as timestamp_ntz))",
    ),
}


def json_float(value: float | None) -> Any:
    """What Spark writes of a number that JSON does not have."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@cache
def values_of(name: str) -> list[Any]:
    """So many values of a kind as a target has rows."""
    made: list[Any] = []

    @hypothesis.seed(f"{SEED} {name}")
    @hypothesis.settings(
        max_examples=_DISTINCT // _AT_ONCE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @hypothesis.given(st.lists(KINDS[name].values, min_size=_AT_ONCE, max_size=_AT_ONCE))
    def collect(found: list[Any]) -> None:
        made.extend(found)

    collect()
    chosen = random.Random(f"{SEED} {name}")
    made += chosen.choices(made, k=max(0, ROWS - len(made)))
    return [None if chosen.random() < _HOLES else value for value in made[:ROWS]]


def same(sent: Any, found: Any, *, signed: bool = True) -> bool:
    """Equality, where a NaN equals itself, and -0.0 does not equal 0.0, but for the numbers of JSON."""
    if isinstance(sent, float) and isinstance(found, int | Decimal):  # of JSON, whose numbers are decimals
        return sent == float(found)
    if isinstance(sent, float) and isinstance(found, float):
        if math.isnan(sent):
            return math.isnan(found)
        return sent == found and (not signed or math.copysign(1, sent) == math.copysign(1, found))
    if isinstance(sent, list | tuple) and isinstance(found, list | tuple):
        return len(sent) == len(found) and all(same(*pair, signed=signed) for pair in zip(sent, found, strict=True))
    if isinstance(sent, dict) and isinstance(found, dict):
        return sent.keys() == found.keys() and all(same(sent[key], found[key], signed=False) for key in sent)
    if isinstance(sent, bool) or isinstance(found, bool):
        return sent is found
    return bool(sent == found)


def as_kind(name: str, declared: str, read: str = "{0}", **more: Any) -> Kind:
    """A kind as a target has it."""
    return replace(KINDS[name], declared=declared, read=read, **more)


def utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)
