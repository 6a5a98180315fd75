"""`.properties` files: an immutable mapping that keeps where each value came from, with typed getters.

A value stays as it was written until a getter is called, so that a file's text can travel to another process with
its references unresolved. Everything here may be shared between threads.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from txpool.config import jdbc
from txpool.config.address import Address
from txpool.config.logins import AllowedLogin, read_allowed
from txpool.config.other_products import ALL_KNOWN, advice, nearest, other_word
from txpool.config.reader import reading
from txpool.config.secrets import (
    ConfiguredValue,
    Secret,
    SecurityWarning,
    ValueSource,
    passwords_in,
    redact,
    redact_url,
)
from txpool.config.url import is_server, path_scheme
from txpool.errors import ConfigurationError

__all__ = [
    "Properties",
    "Secret",
    "SecurityWarning",
    "redact",
    "redact_url",
]

_LINE_END = re.compile(r"\r\n|\r|\n")

NOWHERE: Mapping[str, str] = MappingProxyType({})
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(?P<unit>ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_WORD = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"
_IDENTIFIER = rf"(?:{_WORD}\.)?{_WORD}"


class Properties(Mapping[str, str]):
    """An immutable mapping of keys to values as they were written, and the typed getters of those values.

    `path` is the file as it was named (None: not from a file), `folder` what its relative paths start from, and
    `text` its text with the comments blanked, since a comment may hold an old password.
    A getter gives None for a key that is absent, and ConfigurationError for a value that is wrong.
    """

    __slots__ = ("_entries", "folder", "path", "text")

    def __init__(
        self, entries: Mapping[str, ConfiguredValue], text: str, folder: Path, path: Path | None = None
    ) -> None:
        self._entries = dict(entries)
        self.text = text
        self.folder = folder
        self.path = path

    @classmethod
    def load(cls, path: str | Path) -> Properties:
        """Read a file; warns if others can read a password that stands in it."""
        path = Path(path)
        absolute = Path(os.path.abspath(path))
        try:
            with absolute.open("rb") as file:
                text = file.read().decode().removeprefix("\ufeff")  # a byte order mark, which some editors write
                mode = os.fstat(file.fileno()).st_mode
        except (OSError, ValueError) as error:
            # Nothing is chained: a decoding error carries the bytes it could not decode.
            advice, problem = "name a .properties file", "It is no path"
            if isinstance(error, UnicodeDecodeError):
                advice, problem = "save it as UTF-8", "It is not UTF-8 text"
            elif isinstance(error, PermissionError):
                advice = f"let uid {os.geteuid()} read it"
            reason = (error.strerror or "") if isinstance(error, OSError) else problem
        else:
            properties = cls.parse(text, path=path, folder=absolute.parent)
            if properties.inline and mode & (stat.S_IRGRP | stat.S_IROTH):
                keys = ", ".join(entry.key for entry in properties.inline)
                message = f"{path}: others can read this file, and {keys} in it holds a password: "
                warnings.warn(message + f"chmod 600 {path}, or write ${{env:NAME}}", SecurityWarning, stacklevel=3)
            return properties
        there = "" if Path(path).is_absolute() else f" (the absolute path is {absolute})"
        message = f"{path}: {reason}{there}: {advice}"
        raise ConfigurationError(redact_url(message))  # a url may have been given in the place of a path

    @classmethod
    def parse(cls, text: str, path: str | Path | None = None, folder: Path | None = None) -> Properties:
        """Read a file's text; `path` is its name in errors, and relative paths start from `folder`."""
        name = "the properties given as text" if path is None else str(path)
        folder = folder or (Path.cwd() if path is None else Path(os.path.abspath(path)).parent)
        entries: dict[str, ConfiguredValue] = {}
        lines: list[str] = []
        line, escape_error = 1, False
        try:
            for element in reading.parse(text):
                if isinstance(element, reading.KeyValue):
                    entry = ConfiguredValue(
                        element.key, element.value, f"{name}:{line}", folder, ValueSource.FILE, line
                    )
                    if entry.key in entries:
                        first = entries[entry.key].line
                        raise ConfigurationError(
                            f"{entry.where}: {entry.key} is given twice, first on line {first}: leave one out"
                        )
                    entries[entry.key] = entry
                ends = _LINE_END.findall(element.source)
                lines.append("".join(ends) if isinstance(element, reading.Comment) else element.source)
                line += len(ends)
        except reading.InvalidUEscapeError:
            escape_error = True
        if escape_error:
            raise ConfigurationError(f"{name}:{line}: a \\u is not followed by four hexadecimal digits")
        return cls(entries, "".join(lines), folder, None if path is None else Path(path))

    def overlaid(self, *layers: Mapping[str, ConfiguredValue]) -> Properties:
        """The same file with other values above and below its own; if two give a key, the higher source wins."""
        entries = self._entries
        for layer in layers:
            entries = entries | {
                key: entry for key, entry in layer.items() if key not in entries or entries[key].source < entry.source
            }
        return Properties(entries, self.text, self.folder, self.path)

    def __getitem__(self, key: str) -> str:
        return self._entries[key].raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Properties of {self.path or 'code'}: {len(self)} keys>"

    def __reduce__(self) -> tuple[Any, ...]:
        for entry in self.inline:
            raise entry.stays_here()
        return Properties, (self._entries, self.text, self.folder, self.path)

    @property
    def inline(self) -> tuple[ConfiguredValue, ...]:
        """The values that have a password in them, also those of the text that another layer has overridden."""
        in_text = Properties.parse(self.text, self.path, self.folder)._entries
        entries = dict.fromkeys([*self._entries.values(), *in_text.values()])
        return tuple(entry for entry in entries if entry.inline)

    def entry(self, key: str) -> ConfiguredValue:
        """A key's value as it was written, and where; KeyError if it is absent."""
        return self._entries[key]

    def error(self, key: str, problem: str) -> ConfigurationError:
        """The error that says what is wrong with a key, which may be absent, and where; never shows a secret."""
        if key in self._entries:
            return self._entries[key].error(problem)
        return ConfigurationError(f"{self.path or 'the arguments'}: {key} {problem}")

    def check(
        self,
        known: Iterable[str],
        passed: str | None = None,
        *,
        aliases: Iterable[str] = (),
        elsewhere: Mapping[str, str] = NOWHERE,
    ) -> None:
        """Refuse keys that are neither known, nor aliases, nor begin with `passed`, and say what to write instead.

        All of them are in one error, a line for each. `elsewhere` has the keys of other files, and whose each is.
        """
        known = tuple(known)
        accepted = {*known, *aliases}
        refused = [
            (entry.where, *self._instead(entry, known, elsewhere))
            for key, entry in self._entries.items()
            if key not in accepted and not (passed and key.startswith(passed) and key != passed)
        ]
        # What is like no known key gets the list of those, which is shown once.
        unlike = [where for where, _, hint in refused if hint.startswith(ALL_KNOWN)]
        lines = []
        for where, shown, hint in refused:
            if not hint.startswith(ALL_KNOWN):
                lines.append(f"{where}: unknown key {shown}: {hint}")
            elif where == unlike[-1]:
                lines.append(f"{', '.join(unlike)}: unknown key{'s' * (len(unlike) > 1)}: {hint}")
        if lines:
            raise ConfigurationError("\n".join(lines))

    def _instead(self, entry: ConfiguredValue, known: tuple[str, ...], elsewhere: Mapping[str, str]) -> tuple[str, str]:
        """What is shown of an unknown key, and what to write instead."""
        key = entry.key
        hint = f"that is a key of {elsewhere[key]}" if key in elsewhere else advice(key, entry.raw, known)
        other = other_word(key)
        if (
            hint.startswith(ALL_KNOWN)
            and other is not None
            and other.key in elsewhere
            and other.product != "psycopg_pool"  # whose words, as timeout, are too general
        ):
            hint = f"{other.advice(entry.raw)}, in {elsewhere[other.key]}"
        # A key that is like no known one may be a part of a password: only its line number is shown.
        like = key if nearest(key, known) == hint or key in elsewhere else key.rpartition(".")[2]
        return like, hint

    def string(self, key: str, pattern: str = r"(?s:.+)", right: str = "a value") -> str | None:
        """Text that matches `pattern` as a whole; `right` says in words which text does."""
        value = self._value(key)
        if value is not None and not re.fullmatch(pattern, value):
            raise self.error(key, f"is not right: write {right}")
        return value

    def identifier(self, key: str) -> str | None:
        """An SQL identifier, with a schema or without."""
        return self.string(key, _IDENTIFIER, "a plain SQL name, such as xids or audit.xids")

    def _value(self, key: str) -> str | None:
        return self._entries[key].resolve() if key in self._entries else None

    def integer(self, key: str, min: int | None = None) -> int | None:  # noqa: A002 - reads well where it is called
        """A whole number, not below `min`."""
        value = self._value(key)
        if value is None:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise self.error(key, "is not a whole number: write one, such as 10")
        if min is not None and int(value) < min:
            raise self.error(key, f"is too small: write {min} or more")
        return int(value)

    def share(self, key: str, none: bool = False) -> float | None:
        """A share, above 0 and up to 1; `none` allows the word none."""
        value = self._value(key)
        if value is None or (none and value.lower() == "none"):
            return None
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", value) or not 0 < float(value) <= 1:
            raise self.error(key, f"is no share: write a number above 0 and up to 1, such as 0.8{', or none' * none}")
        return float(value)

    def address(self, key: str) -> Address | None:
        """A host and a port."""
        value = self._value(key)
        address = None if value is None else Address.parse(value)
        if value is not None and address is None:
            raise self.error(key, "is no address: write a host and a port, such as 127.0.0.1:9464")
        return address

    def boolean(self, key: str) -> bool | None:
        """True or false (also yes, on, 1; no, off, 0)."""
        value = self._value(key)
        if value is not None and value.lower() not in _BOOLEANS:
            raise self.error(key, "is neither true nor false: write one of them")
        return None if value is None else _BOOLEANS[value.lower()]

    def duration(self, key: str, none: bool = False, positive: bool = False) -> float | None:
        """Seconds: a number, or one with ms, s, m or h; `none` allows the word none."""
        value = self._value(key)
        if value is None or (none and value.lower() == "none"):
            return None
        match = _DURATION.fullmatch(value.lower())
        also = ", or none" if none else ""
        if match is None:
            raise self.error(key, f"is not a duration: write seconds (30), or a number with ms, s, m or h (10m){also}")
        seconds = float(match["number"]) * _SECONDS[match["unit"]]
        if positive and not seconds:
            raise self.error(key, f"must be longer than nothing: write seconds (30), or 500ms{also}")
        return seconds

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        """One of the words in `choices`."""
        value = self._value(key)
        if value is not None and value not in choices:
            raise self.error(key, f"is not one of them: write {' or '.join(choices)}")
        return value

    def paths(self, key: str) -> tuple[Path, ...]:
        """Paths between commas, each from the folder of the file that names it."""
        value = self._value(key)
        names = [] if value is None else [name.strip() for name in value.split(",")]
        if not all(names):
            raise self.error(key, "has an empty path: write paths with commas between them, such as a, b")
        return tuple(Path(os.path.abspath(self._entries[key].folder / name)) for name in names)

    def globs(self, key: str) -> tuple[str, ...]:
        """Paths, which may have a * in them, between commas or colons, each from the folder of the file."""
        value = self._value(key)
        names = [] if value is None else [name.strip() for name in re.split(f"[,{os.pathsep}]", value)]
        return tuple(os.path.abspath(self._entries[key].folder / name) for name in names if name)

    def directory(self, key: str) -> Path | None:
        """One path, from the folder of the file that names it."""
        value = self._value(key)
        if value and "://" in value:
            raise self.error(key, "is a url, and has to be a path in a file system of this machine: write /srv/tables")
        return Path(os.path.abspath(self._entries[key].folder / value)) if value else None

    def location(self, key: str) -> str | None:
        """As `directory`, or the url of a place in an object store."""
        value = self._value(key)
        if value and not value.startswith("s3://") and "://" in value:
            raise self.error(key, "is a url of another kind: write s3://bucket/prefix, or a path of this machine")
        return value if value and value.startswith("s3://") else value and str(self.directory(key))

    def file(self, key: str) -> Path | None:
        """As `directory`."""
        return self.directory(key)

    def names(self, key: str, pattern: str, right: str) -> tuple[str, ...]:
        """Words between commas, each of which matches `pattern` as a whole; `right` says in words which does."""
        value = self._value(key)
        words = () if value is None else tuple(word.strip() for word in value.split(","))
        if not all(re.fullmatch(pattern, word) for word in words):
            raise self.error(key, f"is not right: write {right}, with commas between them")
        return words

    def logins(self, key: str) -> tuple[AllowedLogin, ...]:
        """Logins between commas, each as a url, with its references unresolved."""
        return read_allowed(self._entries[key]) if key in self._entries else ()

    def secret(self, key: str) -> Secret | None:
        """The value as a Secret, unresolved."""
        return Secret(self._entries[key]) if key in self._entries else None

    def plain(self, key: str) -> bool | int | float | str | Secret:
        """A driver's option: a boolean or a number if it is written as one; a Secret if key or value says so."""
        entry = self._entries[key]
        if entry.named_secret or "\0" in entry.literal or passwords_in(entry.literal):
            return Secret(entry)
        value = entry.resolve()
        for kind in (int, float):
            with suppress(ValueError):
                if str(kind(value)) == value:
                    return kind(value)
        return {"true": True, "false": False}.get(value, value)

    def url(self, key: str) -> str | None:
        """A url without the password in it; the path of one that names a file, `sqlite:///…`, is made absolute."""
        value = self._value(key)
        if value is None:
            return None
        if jdbc.is_url(value):
            if jdbc.has_secret(value):
                raise self.error(key, "has a password in it: give it a key of its own, as password = ${env:NAME}")
            return value
        if is_server(value):
            return self._entries[key].url().without
        scheme = path_scheme(value)
        if not scheme:
            return value  # memory:, or a url that the caller refuses
        path = value.removeprefix(scheme)
        return scheme + (path and os.path.abspath(self._entries[key].folder / path))

    def url_secret(self, key: str) -> Secret | None:
        """The password in a url, if there is one."""
        value = self._value(key)
        has_one = value is not None and is_server(value) and self._entries[key].url().password is not None
        return Secret(self._entries[key], in_url=True) if has_one else None
