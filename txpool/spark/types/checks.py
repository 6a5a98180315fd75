"""What values are checked for in the task, since a server would take them and store others without an error.

Each function raises ValueError with what is wrong.
"""

from __future__ import annotations

import json
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txpool.errors import described

#: 0001-01-01 and 9999-12-31 in days since 1970: what Spark documents for its dates. Beyond are a server's infinities.
_DAYS = -719_162, 2_932_896
_MICROSECONDS_OF_DAY = 86_400_000_000
_MOMENTS = _DAYS[0] * _MICROSECONDS_OF_DAY, (_DAYS[1] + 1) * _MICROSECONDS_OF_DAY - 1
_MICROSECOND_DIGITS = 6
#: The digits and the powers of ten with which every parser makes the right double, MySQL's, too.
_EXACT_DIGITS, _EXACT_POWER = 15, 22
_LEAST_WHOLE, _MOST_WHOLE = -(2**63), 2**64 - 1


def require_between(values: pa.Array, least: int, most: int, message: str) -> None:
    """All numbers are within these bounds."""
    found = pc.min_max(values).as_py()
    if found["min"] is not None and not least <= found["min"] <= found["max"] <= most:
        raise ValueError(message)


def require_days(dates: pa.Array) -> None:
    """Dates are from 0001-01-01 to 9999-12-31."""
    require_between(dates.cast(pa.int32()), *_DAYS, "a date is from 0001-01-01 to 9999-12-31")


def require_moments(timestamps: pa.Array, digits: int | None = None) -> None:
    """Timestamps are from 0001-01-01 to 9999-12-31, and a column with so many digits below a second keeps them."""
    moments = timestamps.cast(pa.timestamp("us", timestamps.type.tz)).cast(pa.int64())
    require_between(moments, *_MOMENTS, "a timestamp is from 0001-01-01 to 9999-12-31")
    if digits is not None:
        require_fraction(moments, digits)


def require_fraction(microseconds: pa.Array, digits: int) -> None:
    """Microseconds have no more than so many digits below a second: a server rounds others without a word."""
    unit = 10 ** (_MICROSECOND_DIGITS - digits)
    if unit > 1 and (pc.fill_null(microseconds, 0).to_numpy() % unit).any():
        raise ValueError(
            f"the column has {f'{digits} digits' if digits else 'no digits'} below a second, and the server would "
            "round: declare it with (6), or use date_trunc()"
        )


def require_length(texts: pa.Array, most: int) -> None:
    """Texts have no more than so many characters: a server cuts spaces at the end without a word."""
    longest = pc.max(pc.utf8_length(texts)).as_py()
    if longest is not None and longest > most:
        raise ValueError(f"it has {longest} characters, and the column {most}")


def require_no_null(values: pa.Array) -> None:
    """No value is NULL, for which a server would take the next number."""
    if values.null_count:
        raise ValueError("it is NULL, and the server would take a number of its own: leave the column out")


def require_signed_zeros_kept(floats: pa.Array) -> None:
    """No value is -0.0."""
    zeros = floats.filter(pc.equal(floats, 0.0))
    if len(zeros) and pc.any(pc.less(pc.divide(pa.scalar(1.0, zeros.type), zeros), 0.0)).as_py():
        raise ValueError("it is -0.0, which would be stored as 0.0: add 0.0 to it")


def require_no_replacement(texts: pa.Array) -> None:
    """No text has the character U+FFFD, which Spark's JSON has in place of bytes that are no UTF-8."""
    if pc.any(pc.match_substring(texts, "\ufffd")).as_py():
        raise ValueError("a text within it has U+FFFD, by which Spark's JSON replaces bytes that are no UTF-8")


class JsonCheck(Enum):
    """What JSON texts are checked for."""

    NONE = "nothing"
    KEYS = "keys"  #: no object has a key twice: the server keeps the last one
    NUMBERS = "numbers"  #: that, and numbers are whole ones of 64 bits, or what MySQL's parser keeps

    def require(self, texts: pa.Array) -> None:
        """ValueError if a text, or bytes that are one, is no JSON, or has what is checked for."""
        if self is JsonCheck.NONE:
            return
        whole, real = (_whole, _real) if self is JsonCheck.NUMBERS else (str, str)
        decoder = json.JSONDecoder(object_pairs_hook=_require_unique, parse_int=whole, parse_float=real)
        given = [text for text in texts.to_pylist() if text is not None]
        if self is JsonCheck.KEYS and _are_valid(decoder, given):
            return
        for text in given:
            try:
                decoder.decode(text if isinstance(text, str) else text.decode())
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(f"it is invalid JSON, or nested too deeply: {described(error)}") from error


def _are_valid(decoder: json.JSONDecoder, texts: list[str | bytes]) -> bool:
    """Whether they are so as parts of one text, which takes a third of the time; if not, one by one says why.

    Texts that are JSON only together do not reach a column: the server parses each.
    """
    try:
        decoder.decode(f"[{','.join(texts)}]")  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):  # TypeError: bytes
        return False
    return True


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object has a key twice, and the server would keep only the last one")


def _whole(digits: str) -> None:
    if not _LEAST_WHOLE <= Decimal(digits) <= _MOST_WHOLE:
        raise ValueError("a number within it has more than 64 bits, and the server would round it")


def _real(digits: str) -> None:
    _, significant, exponent = Decimal(digits).as_tuple()
    if len(significant) > _EXACT_DIGITS or not -_EXACT_POWER <= int(exponent) <= _EXACT_POWER:
        raise ValueError(
            f"a number within it has more than {_EXACT_DIGITS} digits, or a large exponent, and the server might round "
            "it: cast it to string within"
        )
