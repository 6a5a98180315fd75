"""Configured values as they were written, with `${env:NAME}` and `${file:PATH}` references; secrets, and hiding them.

`$${` stands for a literal `${`. References are resolved each time that the value is read, in the process that reads it.
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

from txpool.config.url import SECRET_WORD, Url, UrlError, logins_in, may_hold_password, parse
from txpool.errors import ConfigurationError, described

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<kind>env|file):(?P<name>[^{}]+)\}|\$\{")
_SECRET_KEY = re.compile(SECRET_WORD, re.IGNORECASE)
# In free text it is not certain where a password ends that is not encoded. So hiding is greedy: it extends to the last
# @ of the text, or to the next known parameter. NUL stands for a reference.
_BEGIN = re.compile(r"postgres\w*:|:/|[\0}]")
# Without an @, what follows the colon is a port; if it is no port, it may be a password, unless it is a reference.
_NO_PORT = re.compile(
    r"(?P<head>://[^\s:/@\[]*:)(?!/|\$\{(?:env|file):[^{}]+\}@|[\d\0]{1,5}(?![^\s/?,;:)\]'\"]))"
    r"(?P<password>[^\s*].*)",
    re.DOTALL,
)
_KNOWN_PARAMETER = (
    r"(?:user(?:name)?|host(?:addr)?|port|dbname|database(?:name)?|application_?name|ssl(?:mode|cert|key|rootcert)?|"
    r"connect_?timeout|options|service|passfile|target_session_attrs)"
)
_PARAMETER = re.compile(
    rf"(?P<head>(?<![\w.%-])(?=[\w.%-]*?(?:{SECRET_WORD}|%[0-9a-f]{{2}}))[\w.%-]+\s*=\s*)(?!\*\*\*)"
    r"(?P<password>\S.*?)"
    rf"(?=[\s&;]{_KNOWN_PARAMETER}\s*=|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE_ALONE = re.compile(r"\$\{(?:env|file):[^{}]+\}")
#: The key of a list of logins.
LOGINS = "recovery.noted"
#: How a function is named: package.module:function.
FUNCTION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_PIECE = 8  # characters: parts of a secret of at least this length are hidden in errors


T = TypeVar("T")

#: What to do if a variable is not set in this process, by its name. A task of Spark's has other advice.
variable_advice: Callable[[str], str] = "export {0}=…".format


class SecurityWarning(UserWarning):
    """A file with a password in it can be read by others."""


class ValueSource(IntEnum):
    """Where a value came from; the higher one has precedence."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    CODE = 3


@dataclass(frozen=True, slots=True)
class ConfiguredValue:
    """One key's value as it was written, and where: on a line of a file, in a variable, as an argument."""

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
        """Whether the value itself has a password in it, or a part of one."""
        if self.is_url:
            return may_hold_password(self.literal)
        if self.key == LOGINS:
            return any(may_hold_password(login.partition(" by ")[0].strip()) for login in logins_in(self.literal))
        names_code = self.key == "credentials" and re.fullmatch(FUNCTION, self.raw)
        own = [self.literal] if self.named_secret and not names_code else []
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
        """The value, resolved now, as a url; ConfigurationError if that is not clear."""
        try:
            return parse(self.resolve())
        except UrlError as error:
            problem = str(error)
        raise self.error(problem)  # outside of the handler, so that the UrlError is not chained

    @property
    def literal(self) -> str:
        """The value with NUL in place of each reference."""
        return _REFERENCE.sub(lambda match: match["escaped"] or "\0", self.raw)

    @property
    def references(self) -> tuple[Secret, ...]:
        """What its references stand for, for `redact`: each may be a secret."""
        found = (match for match in _REFERENCE.finditer(self.raw) if match["kind"])
        return tuple(Secret(replace(self, raw=match[0])) for match in found)

    def resolve(self) -> str:
        """The value with its references resolved, now."""
        return _REFERENCE.sub(self._resolve_one, self.raw)

    def _resolve_one(self, match: re.Match[str]) -> str:
        name = match["name"]
        if match["escaped"]:
            return "${"
        if match["kind"] == "env":
            if name not in os.environ:
                raise self.error(f"needs the environment variable {name}, which is not set: {variable_advice(name)}")
            return os.environ[name]
        if match["kind"] == "file":
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    text = file.read().decode().removesuffix("\n").removesuffix("\r")
                    found = os.fstat(file.fileno())
            except (OSError, UnicodeDecodeError) as error:
                # Not chained, since a decoding error has the bytes that it could not decode.
                reason, advice = _unreadable(error)
            else:
                self._warn(path, found)
                return text
            raise self.error(f"needs the file {path}, which cannot be read ({reason}): {advice}")
        raise self.error("has a ${ that is no reference: write ${env:NAME}, ${file:PATH}, or $${ for a plain ${")

    def _warn(self, path: Path, found: os.stat_result) -> None:
        """Warn if others can read a secret's file. That of another user may be readable by a group of ours."""
        others = stat.S_IROTH | (stat.S_IRGRP if found.st_uid == os.geteuid() else 0)
        if found.st_mode & others and (self.named_secret or self.is_url):
            message = f"{self.where}: {self.key} comes from {path}, which others can read: chmod go-rwx {path}"
            warnings.warn(message, SecurityWarning, stacklevel=2)

    def stays_here(self) -> ConfigurationError:
        """The error of pickling or sending a value that has a password in it."""
        return self.error("holds a password itself and cannot travel: write it as ${env:NAME} or ${file:PATH}")

    def error(self, problem: str) -> ConfigurationError:
        """The error that says what is wrong with this value; never shows a secret."""
        # In a wrong url, text between references may be a part of a password.
        mixed = self.is_url and "\0" in self.literal.strip("\0")
        shown = "" if self.named_secret or self.inline or mixed else f" = {self.raw!r}"
        return ConfigurationError(f"{self.where}: {self.key}{shown} {problem}")


class Secret:
    """A password that is shown as `***`; kept as it was written, and resolved by each `reveal()`.

    `entry` is the value as it was written; with `in_url`, the secret is the password in that url. It is pickled only
    if it is a reference.
    """

    __slots__ = ("entry", "in_url")

    def __init__(self, value: ConfiguredValue | str, in_url: bool = False) -> None:
        if isinstance(value, str):
            value = ConfiguredValue("password", value, "a Secret made in code", Path.cwd(), ValueSource.CODE)
        self.entry = value
        self.in_url = in_url

    def reveal(self) -> str:
        """The password itself; ConfigurationError if its reference does not resolve."""
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


def _unreadable(error: OSError | UnicodeDecodeError) -> tuple[str, str]:
    """Why a secret's file cannot be read, and what to do."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text", "save it as UTF-8"
    if isinstance(error, PermissionError):
        return "Permission denied", f"let uid {os.geteuid()} read it"
    return str(error.strerror), "write the value into it"


def quoted_around_references(text: str) -> str:
    """A text, percent-encoded as a part of a url, but for the references in it."""
    parts = re.split(f"({_REFERENCE_ALONE.pattern})", text)
    return "".join(part if index % 2 else quote(part, safe="") for index, part in enumerate(parts))


def escaped(text: str) -> str:
    """A text, written so that nothing in it is a reference."""
    return text.replace("${", "$${")


def passwords_in(text: str) -> list[str]:
    """The parts of a url, a conninfo, or a text with some in it, that may be passwords."""
    found = [match["password"] for find in (_PARAMETER, _NO_PORT) for match in find.finditer(text)]
    start, end = _userinfo(text)
    return [*found, text[start:end]] if start < end else found


def describe_error(error: BaseException) -> str:
    """An error in one line, without a password that the driver may have put into it."""
    return " ".join(redact_url(described(error)).split())


def redact_url(text: str) -> str:
    """A url, a conninfo, or a text with some in it, with *** in place of every part that may be a password."""
    start, end = _userinfo(text)
    for match in _PARAMETER.finditer(text):
        if 0 < start <= match.start() and match.start("password") <= end < match.end():
            # The @ may belong to the parameter, or end a password that looks like a parameter.
            text = f"{text[:start]}***{text[match.end() :]}"
            break
    text = _PARAMETER.sub(_hidden, text)
    start, end = _userinfo(text)
    if start < end and not _REFERENCE_ALONE.fullmatch(text, start, end):
        text = f"{text[:start]}***{text[end:]}"
    return _NO_PORT.sub(_hidden, text)


def _userinfo(text: str) -> tuple[int, int]:
    """The range in which a password before an @ may stand: from the first colon after a url's user on."""
    end = max(text.rfind("@"), 0)
    begin = _BEGIN.search(text, 0, end)
    colon = text.find(":", begin.end(), end) if begin else -1
    return (colon + 1, end) if colon >= 0 else (0, 0)


def _hidden(match: re.Match[str]) -> str:
    return match[0] if _REFERENCE_ALONE.fullmatch(match["password"]) else f"{match['head']}***"


def redact(text: str, secrets: Iterable[Secret | None] = ()) -> str:
    """A text with *** in place of every password: those of urls, and these secrets, also parts of them."""
    revealed = set()
    for secret in secrets:
        try:
            revealed.add(secret.reveal() if secret else "")
        except ConfigurationError:
            continue  # what cannot be resolved here cannot be in the text
    forms = {form for password in revealed for form in (password, quote(password, safe=""), repr(password)[1:-1])}
    for form in sorted(forms - {""}, key=len, reverse=True):
        text = text.replace(form, "***")
    for password in revealed:
        text = _without_pieces(text, password)
    return redact_url(text)


def _without_pieces(text: str, password: str) -> str:
    """A text with *** in place of every part of `_PIECE` or more characters that is also in the password."""
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
    """Call `connect`, and return its result; its errors show none of the secrets."""
    try:
        return connect()
    except UnicodeError:
        pass  # it has the whole text: the error below is raised outside of the handler, so that it is not chained
    except Exception as error:
        hide_in(error, secrets)
        raise
    raise ConfigurationError(f"{whose}: the user, the password or an option cannot be sent, since it is no UTF-8 text")


def hide_in(error: BaseException, secrets: Iterable[Secret | None] = ()) -> None:
    """Replace every password in an error's messages, and in those of its causes and contexts."""
    secrets = tuple(secrets)
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        each.args = tuple(redact(value, secrets) if isinstance(value, str) else value for value in each.args)
        for forget in _in_errors:
            forget(each)
        notes = getattr(each, "__notes__", None)
        if notes:
            notes[:] = [redact(note, secrets) for note in notes]
