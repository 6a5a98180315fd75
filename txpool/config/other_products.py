"""What to write instead of an unknown word: the keys of other products, and what they are called here.

HikariCP, Agroal (and Quarkus), DBCP2, c3p0, Narayana, SQLAlchemy and psycopg_pool. Their users bring these keys along,
and the nearest spelling would lead some of them to a key that means something else, or has another unit. The table is
`other_products.toml`; it is read once a key is unknown.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from txpool.config.special_values import Special, special_values, translated_value

#: The unit of a key, as the end of a duration, and its name.
UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
#: How a sentence begins that names all known words, since none is like the unknown one.
ALL_KNOWN: Final = "the known ones are"
_SEPARATORS = re.compile(r"[-_. ]+")
#: Values that are no numbers, and are shown again: no other could be a secret's.
_WORDS_SHOWN: Final = frozenset({"true", "false"})


class OtherWord(NamedTuple):
    """What another product's key is here: a `key`, whose value has the `unit` there, or no key, and the `reason`.

    `zero` and `below` are what 0 and a negative value become.
    """

    product: str
    key: str = ""
    unit: str = ""
    reason: str = ""
    zero: Special | None = None
    below: Special | None = None

    def advice(self, value: str, *, argument: bool = False) -> str:
        """What to write instead, as the end of an error's sentence; `argument` is for a call, not for a file."""
        if not self.key:
            return f"that is {self.product}'s; here {self.reason}: leave it out"
        return f"that is {self.whose}; write {self.translation(value, _as_argument if argument else _as_line)}"

    @property
    def whose(self) -> str:
        """The product, with the unit of its values: HikariCP's, in milliseconds."""
        return f"{self.product}'s{f', in {UNITS[self.unit]}' if self.unit else ''}"

    def translation(self, value: str, spelled: Callable[[str, str], str]) -> str:
        """The key here with the value in its unit. `spelled` writes a key and a value, which may be empty."""
        if value.lower() in _WORDS_SHOWN and not self.unit:
            found: Special | None = Special(value)
        else:
            found = translated_value(value, self.unit, self.zero, self.below)
        written = spelled(self.key, found.right if found is not None else "")
        if found is None and self.unit:
            written += ", such as 30s"
        if found is not None and found.also[0]:
            written += f" and {spelled(*found.also)}"
        notes = "; ".join(filter(None, (self.reason, found.note if found is not None else "")))
        return f"{written}{f' ({notes})' if notes else ''}"


def _as_line(key: str, value: str) -> str:
    return f"{key}{value and f' = {value}'}"


def _as_argument(key: str, value: str) -> str:
    if value.lower() in _WORDS_SHOWN or not value:
        value = value.capitalize()
    elif not value.isdecimal():
        value = f'"{value}"'
    return f"{_SEPARATORS.sub('_', key)}{value and f'={value}'}"


def other_word(name: str) -> OtherWord | None:
    """The other product's word that a key is, whatever its case, its separators and what stands before its last dot."""
    for word in (name, name.rpartition(".")[2]):
        found = all_words().get(word) or all_words().get(unseparated(word))
        if found is not None:
            return found
    return None


def unseparated(word: str) -> str:
    """A key in lower case without its separators."""
    return _SEPARATORS.sub("", word).lower()


def by_product() -> dict[str, dict[str, OtherWord]]:
    """The words of each product that have a key here, as its users spell them."""
    return {
        product: {word: _with_key(product, word, entry) for word, entry in entries.items()}
        for product, entries in _table()["keys"].items()
    }


def _with_key(product: str, word: str, entry: str | dict[str, str]) -> OtherWord:
    fields = {"key": entry} if isinstance(entry, str) else entry
    key = fields["key"]
    return OtherWord(product, key, fields.get("unit", ""), fields.get("note", ""), *special_values(word, key))


def without() -> dict[str, OtherWord]:
    """The words that have no key here."""
    return {
        word: OtherWord(product, reason=group["reason"])
        for group in _table()["without"]
        for product, words in group.items()
        if product != "reason"
        for word in words
    }


@cache
def all_words() -> dict[str, OtherWord]:
    """Each word as its product spells it, and without its separators."""
    # HikariCP's maxLifetime is in milliseconds, and psycopg_pool's max_lifetime in seconds: a word as it is spelled by
    # its product is that product's, and in another spelling it is the first one's.
    spelled = [*without().items(), *(item for words in by_product().values() for item in words.items())]
    found: dict[str, OtherWord] = {}
    for word, other in spelled:
        found.setdefault(unseparated(word), other)
    return found | dict(spelled)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("txpool.config").joinpath("other_products.toml").read_text(encoding="utf-8"))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like an unknown one, as the end of an error's sentence."""
    word, names = word.lower(), {name.lower(): name for name in known}
    parts = [name for name in names if f".{word}".endswith(f".{name}") or name.endswith(f".{word}")]
    close = parts if len(parts) == 1 else difflib.get_close_matches(word, parts or names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"{ALL_KNOWN} {', '.join(names.values())}"


def advice(word: str, value: str, known: Collection[str], *, argument: bool = False) -> str:
    """What to write instead of an unknown key: another product's word is translated, else the nearest one is named."""
    meant = [key for key in known if unseparated(key) == unseparated(word)]
    other = other_word(word) if not meant else None
    if other is not None and (not other.key or other.key in known):
        return other.advice(value, argument=argument)
    return nearest(word, map(word_of, meant or known) if argument else meant or known)


def word_of(name: str) -> str:
    """A key as the name of an argument."""
    return name.replace(".", "_").replace("-", "_")
