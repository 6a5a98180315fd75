"""What 0 and negative values of other products' keys become here: there they mean never, for ever, or without a limit.

Written with its unit, such a value would be refused here, or mean the opposite.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Special(NamedTuple):
    """What to write for a special value.

    `right` is the value here, empty if there is none that means the same; `note` says why it differs, and `also` is a
    second key with its value.
    """

    right: str
    note: str = ""
    also: tuple[str, str] = ("", "")


_NONE: Final = Special("none")
_NO_LIMIT: Final = Special("", "here there is always a limit: write how many the server can serve")
_EACH_TIME: Final = Special("1s", "there it means each time anew")
_NO_WAIT: Final = Special("1s", "there it means no wait at all; here the wait includes the opening of a connection")
_FOR_EVER: Final = Special("24h", "there it means for ever, and here each wait has an end")
_UNCHECKED: Final = Special("24h", "there it means that no connection is checked when it is taken")
_CHECK_ENDS: Final = Special("60s", "there it means without an end, and here each check has one")
_ALL_AT_ONCE: Final = Special("30000", "there it means all marks at once, and here a batch has a limit")
_SKIPPED: Final = Special("", "there it skips the first run", ("recovery.expiry.skip-first", "true"))

#: For each key here, what 0 becomes, and what a negative value does; None if it means what the number says.
_BY_KEY: Final[dict[str, tuple[Special | None, Special | None]]] = {
    "pool.idle-timeout": (_NONE, _NONE),
    "pool.max-lifetime": (_NONE, _NONE),
    "pool.leak-threshold": (_NONE, _NONE),
    "pool.keepalive": (_NONE, _NONE),
    "transaction.timeout": (_NONE, _NONE),
    "pool.max-wait": (_FOR_EVER, _FOR_EVER),
    "pool.check-timeout": (_CHECK_ENDS, _CHECK_ENDS),
    "pool.check-bypass": (_UNCHECKED, _UNCHECKED),
    "pool.max-size": (_NO_LIMIT, _NO_LIMIT),
    "pool.min-size": (None, Special("0")),
    "cmr.batch-size": (_ALL_AT_ONCE, _ALL_AT_ONCE),
    "recovery.period": (Special("120s", "here it is longer than nothing"),) * 2,
    "recovery.backoff": (None, Special("10s", "here it is not negative")),
    "recovery.expiry.interval": (_NONE, _SKIPPED),
}
#: If a product's key differs from that.
_BY_WORD: Final[dict[str, tuple[Special | None, Special | None]]] = {
    "minimumIdle": (None, Special("", "there it means as many as maximumPoolSize: write the value of pool.max-size")),
    "maxWaitMillis": (_NO_WAIT, _FOR_EVER),
    "maxWaitDuration": (_NO_WAIT, _FOR_EVER),
    "pool_timeout": (_NO_WAIT, _NO_WAIT),
    "timeout": (_NO_WAIT, _NO_WAIT),
    "pool_recycle": (_EACH_TIME, _NONE),
    "max_lifetime": (_EACH_TIME, _EACH_TIME),
    "max_idle": (_EACH_TIME, _EACH_TIME),
    "removeAbandonedTimeout": (_EACH_TIME, _NONE),
}
#: A number, or a duration as Java, Spring Boot and Quarkus write them: 30, 30s, 500ms, PT30S, -PT1S.
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:PT(?P<inner>-?))?(?P<digits>[0-9]{1,18})(?:\.0+)?(?P<unit>ms|s|m|h)?", re.IGNORECASE
)


def special_values(word: str, key: str) -> tuple[Special | None, Special | None]:
    """What 0 and what a negative value of another product's `word` becomes, which is `key` here."""
    return _BY_WORD.get(word) or _BY_KEY.get(key, (None, None))


def translated_value(value: str, unit: str, zero: Special | None, below: Special | None) -> Special | None:
    """What to write for a value that is counted in `unit`, "" for none; None if the value is no plain number.

    A value that is no number is not taken over, since it could be a secret.
    """
    match = _NUMBER.fullmatch(value.strip())
    if match is None or (match["unit"] and not unit):
        return None
    number, own_unit = int(match["digits"]), (match["unit"] or unit).lower()
    if not number:
        return zero or Special(f"0{own_unit}")
    if "-" not in (match["sign"], match["inner"]):
        return Special(f"{match['digits']}{own_unit}")
    if below is not None and below.also[0]:
        return below._replace(right=f"{match['digits']}{own_unit}")
    return below
