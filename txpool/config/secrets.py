"""A configured value as it was written, its `${env:NAME}` and `${file:PATH}` references, and what hides a secret.

`$${` stands for a literal `${`. References are resolved when the value is asked for, in the process that asks.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from txpool.config.url import SECRET_WORD, Url, UrlError, may_hold_password, parse
from txpool.errors import ConfigurationError

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<kind>env|file):(?P<name>[^{}]+)\}|\$\{")
_SECRET_KEY = re.compile(SECRET_WORD, re.IGNORECASE)
# In free text nobody can say where a password ends that was not written as it should be, so hiding is greedy: it goes
# on to the last @ of the text, or to the next parameter that is known to be one. NUL stands for a reference.
_BEGIN = re.compile(r"postgres\w*:|:/|[\0}]")
# Without an @ it is a host and a port, but for what is no port.
_NO_PORT = re.compile(
    r"(?P<head>://[^\s:/@\[]*:)(?!/|[\d\0]{1,5}(?![^\s/?,;:)\]'\"]))(?P<password>[^\s*].*)", re.DOTALL
)
_KNOWN_PARAMETER = (
    r"(?:user(?:name)?|host(?:addr)?|port|dbname|database(?:name)?|application_?name|ssl(?:mode|cert|key|rootcert)?|"
    r"connect_?timeout|options|service|passfile|target_session_attrs)"
)
_PARAMETER = re.compile(
    rf"(?P<head>(?<![\w.%-])(?=[\w.%-]*?(?:{SECRET_WORD}|%[0-9a-f]{{2}}))[\w.%-]++\s*+=\s*+)(?!\*\*\*)"
    r"(?P<password>\S.*?)"
    rf"(?=[\s&;]{_KNOWN_PARAMETER}\s*=|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE_ALONE = re.compile(r"\$\{(?:env|file):[^{}]+\}")
_PIECE = 8  # characters: what errors quote of a secret, cut off or in part, is hidden from this length on


T = TypeVar("T")


class SecurityWarning(UserWarning):
    """A file with a password in it can be read by others."""


class ValueSource(IntEnum):
    """Where a value came from; the higher wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    CODE = 3


@dataclass(frozen=True, slots=True)
class ConfiguredValue:
    """One key's value as it was written, and where: a file's line, a variable, an argument."""

    key: str
    raw: str = field(repr=False)
    where: str
    folder: Path
    source: ValueSource
    line: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.inline:
            raise self.stays_here()
        return ConfiguredValue, (self.key, self.raw, self.where, self.folder, self.source, self.line)

    @property
    def inline(self) -> bool:
        """Whether a password, or a part of one, stands in the value itself."""
        if self.is_url:
            return may_hold_password(self.literal)
        own = [self.literal] if self.named_secret else []
        return any(text.replace("\0", "").strip("'{}") for text in own + passwords_in(self.literal))

    @property
    def named_secret(self) -> bool:
        """Whether the key says that the value is a secret."""
        return bool(_SECRET_KEY.search(self.key))

    @property
    def is_url(self) -> bool:
        """Whether the key says that the value is a url."""
        return self.key.lower().rpartition(".")[2] == "url"

    def url(self) -> Url:
        """The url that the value is, now, with its password taken out; ConfigurationError where it is not clear."""
        try:
            return parse(self.resolve())
        except UrlError as error:
            problem = str(error)
        raise self.error(problem)  # outside, so that nothing of it is chained

    @property
    def literal(self) -> str:
        """The value with NUL in the place of each reference."""
        return _REFERENCE.sub(lambda match: match["escaped"] or "\0", self.raw)

    def resolve(self) -> str:
        """The value with its references resolved, now."""
        return _REFERENCE.sub(self._resolve_one, self.raw)

    def _resolve_one(self, match: re.Match[str]) -> str:
        name = match["name"]
        if match["escaped"]:
            return "${"
        if match["kind"] == "env":
            if name not in os.environ:
                raise self.error(f"needs the environment variable {name}, which is not set: export {name}=…")
            return os.environ[name]
        if match["kind"] == "file":
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    text = file.read().decode().removesuffix("\n").removesuffix("\r")
                    found = os.fstat(file.fileno())
            except (OSError, UnicodeDecodeError) as error:
                # Nothing is chained: a decoding error carries the bytes it could not decode.
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            else:
                self._warn(path, found)
                return text
            raise self.error(f"needs the file {path}, which cannot be read ({reason}): write the value into it")
        raise self.error("has a ${ that is no reference: write ${env:NAME}, ${file:PATH}, or $${ for a plain ${")

    def _warn(self, path: Path, found: os.stat_result) -> None:
        """Others can read the file of a secret. Where it is not this user's, its group may be what lets us in."""
        others = stat.S_IROTH | (stat.S_IRGRP if found.st_uid == os.geteuid() else 0)
        if found.st_mode & others and (self.named_secret or self.is_url):
            message = f"{self.where}: {self.key} comes from {path}, which others can read: chmod go-rwx {path}"
            warnings.warn(message, SecurityWarning, stacklevel=2)

    def stays_here(self) -> ConfigurationError:
        """Why a value that holds a password is neither pickled nor sent."""
        return self.error("holds a password itself and cannot travel: write it as ${env:NAME} or ${file:PATH}")

    def error(self, problem: str) -> ConfigurationError:
        """What is wrong with this value, in one sentence that never shows a secret."""
        # What stands between references may be a part of a password in a url that is wrong.
        mixed = self.is_url and "\0" in self.literal.strip("\0")
        shown = "" if self.named_secret or self.inline or mixed else f" = {self.raw!r}"
        return ConfigurationError(f"{self.where}: {self.key}{shown} {problem}")


class Secret:
    """A password that shows as `***`; kept as it was written, and resolved by each `reveal()`.

    With `in_url`, the secret is the password inside the url that the value is. Pickled by reference only; `entry`
    is the value as it was written.
    """

    __slots__ = ("entry", "in_url")

    def __init__(self, value: ConfiguredValue | str, in_url: bool = False) -> None:
        if isinstance(value, str):
            value = ConfiguredValue("password", value, "a Secret made in code", Path.cwd(), ValueSource.CODE)
        self.entry = value
        self.in_url = in_url

    def reveal(self) -> str:
        """The password itself; ConfigurationError where its reference does not resolve."""
        return (self.entry.url().password or "") if self.in_url else self.entry.resolve()

    def __repr__(self) -> str:
        return "***"

    def __format__(self, _spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[str, bool, Path | None]:
        return self.entry.raw, self.in_url, self.entry.folder if "${file:" in self.entry.raw else None

    def __deepcopy__(self, _memo: object) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        entry = self.entry if self.in_url else replace(self.entry, key="password")
        return Secret, (entry, self.in_url)


def escaped(text: str) -> str:
    """Text that is to be taken as it stands, written so that nothing in it is a reference."""
    return text.replace("${", "$${")


def passwords_in(text: str) -> list[str]:
    """What may be passwords in a url, a conninfo, or any text with some in it."""
    found = [match["password"] for find in (_PARAMETER, _NO_PORT) for match in find.finditer(text)]
    start, end = _userinfo(text)
    return [*found, text[start:end]] if start < end else found


def redact_url(text: str) -> str:
    """A url, conninfo, or any text with some in it, with all that may be a password shown as ***."""
    start, end = _userinfo(text)
    for match in _PARAMETER.finditer(text):
        if 0 < start < match.start() and match.start("password") <= end < match.end():
            # Nobody can say whether the @ is a parameter's, or the end of a password that looks like one.
            text = f"{text[:start]}***{text[match.end() :]}"
            break
    text = _PARAMETER.sub(_hidden, text)
    start, end = _userinfo(text)
    if start < end and not _REFERENCE_ALONE.fullmatch(text, start, end):
        text = f"{text[:start]}***{text[end:]}"
    return _NO_PORT.sub(_hidden, text)


def _userinfo(text: str) -> tuple[int, int]:
    """Where a password may stand that has an @ behind it: from the first colon of a url's user on."""
    end = max(text.rfind("@"), 0)
    begin = _BEGIN.search(text, 0, end)
    colon = text.find(":", begin.end(), end) if begin else -1
    return (colon + 1, end) if colon >= 0 else (0, 0)


def _hidden(match: re.Match[str]) -> str:
    return match[0] if _REFERENCE_ALONE.fullmatch(match["password"]) else f"{match['head']}***"


def redact(text: str, secrets: Iterable[Secret | None] = ()) -> str:
    """A text with every password in it shown as ***: those of urls, and what the secrets reveal, in part too."""
    revealed = set()
    for secret in secrets:
        try:
            revealed.add(secret.reveal() if secret else "")
        except ConfigurationError:
            continue  # what cannot be resolved here is not in the text either
    forms = {form for password in revealed for form in (password, quote(password, safe=""), repr(password)[1:-1])}
    for form in sorted(forms - {""}, key=len, reverse=True):
        text = text.replace(form, "***")
    for password in revealed:
        text = _without_pieces(text, password)
    return redact_url(text)


def _without_pieces(text: str, password: str) -> str:
    """A text without what it has in common with a password, where that is longer than a chance."""
    pieces = {password[start : start + _PIECE] for start in range(len(password) - _PIECE + 1)}
    hidden = bytearray(len(text))
    for start in range(len(text) - _PIECE + 1):
        if text[start : start + _PIECE] in pieces:
            hidden[start : start + _PIECE] = b"\1" * _PIECE
    runs = groupby(zip(text, hidden, strict=True), key=lambda each: each[1])
    return "".join("***" if hide else "".join(c for c, _ in run) for hide, run in runs)


_in_errors: list[Callable[[BaseException], None]] = []


def in_errors(forget: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
    """Decorates what takes secrets out of a driver's errors that are not in their text."""
    _in_errors.append(forget)
    return forget


def without_secrets(connect: Callable[[], T], whose: str, secrets: Iterable[Secret | None]) -> T:
    """What `connect` returns; what it raises shows none of the secrets."""
    try:
        return connect()
    except UnicodeError:
        pass  # it carries the whole text: nothing is raised while it is handled
    except Exception as error:
        hide_in(error, secrets)
        raise
    raise ConfigurationError(f"{whose}: the user, the password or an option cannot be sent, since it is no UTF-8 text")


def hide_in(error: BaseException, secrets: Iterable[Secret | None] = ()) -> None:
    """Take every password out of what an error says, and those that it was raised from or after."""
    secrets = tuple(secrets)
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        each.args = tuple(redact(value, secrets) if isinstance(value, str) else value for value in each.args)
        for forget in _in_errors:
            forget(each)
        notes = getattr(each, "__notes__", None)
        if notes:
            notes[:] = [redact(note, secrets) for note in notes]
