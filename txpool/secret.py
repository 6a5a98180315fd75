"""A configured value as it was written, its `${env:NAME}` and `${file:PATH}` references, and what hides a secret.

`$${` stands for a literal `${`. References are resolved when the value is asked for, in the process that asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from txpool.errors import ConfigurationError

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<kind>env|file):(?P<name>[^{}]+)\}|\$\{")
_SECRET_WORD = r"(?:password|passwd|passphrase|pwd|secret|token)"  # noqa: S105 - what secrets are called
_SECRET_KEY = re.compile(_SECRET_WORD, re.IGNORECASE)
# A url may begin with a reference: NUL stands in its place, or its brace ends it. The rightmost @ ends the password,
# as it does for those who forget to write %40. Hiding is greedier than finding, since hiding too much does no harm.
_USERINFO = r"(?P<head>(?:://|[\0}])[^\s:/]*:)(?P<password>%s)(?=@)"
_FIND_USERINFO = re.compile(_USERINFO % r"[^\s?]+|[^\s/]+")
_HIDE_USERINFO = re.compile(_USERINFO % r"\S+")
_PARAMETER = re.compile(
    rf"(?P<head>[\w.-]*{_SECRET_WORD}[\w.-]*\s*=\s*)"
    r"(?P<password>'(?:[^'\\]|\\.)*'|\{[^}]*\}|[^\s&;]+)",
    re.IGNORECASE,
)
_QUERY_PASSWORD = re.compile(r"(?P<mark>[?&])password=(?P<password>[^&]*)(?P<more>&?)")


class Source(IntEnum):
    """Where a value came from; the higher wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    CODE = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One key's value as it was written, and where: a file's line, a variable, an argument."""

    key: str
    raw: str = field(repr=False)
    where: str
    folder: Path
    source: Source
    line: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.inline:
            raise self.stays_here()
        return Entry, (self.key, self.raw, self.where, self.folder, self.source, self.line)

    @property
    def inline(self) -> bool:
        """Whether a password, or a part of one, stands in the value itself."""
        own = [self.literal] if self.named_secret else []
        return any(text.replace("\0", "").strip("'{}") for text in own + passwords_in(self.literal))

    @property
    def named_secret(self) -> bool:
        """Whether the key says that the value is a secret."""
        return bool(_SECRET_KEY.search(self.key))

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
                return path.read_bytes().decode().removesuffix("\n").removesuffix("\r")
            except (OSError, UnicodeDecodeError) as error:
                # Nothing is chained: a decoding error carries the bytes it could not decode.
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise self.error(f"needs the file {path}, which cannot be read ({reason}): write the value into it")
        raise self.error("has a ${ that is no reference: write ${env:NAME}, ${file:PATH}, or $${ for a plain ${")

    def stays_here(self) -> ConfigurationError:
        """Why a value that holds a password is neither pickled nor sent."""
        return self.error("holds a password itself and cannot travel: write it as ${env:NAME} or ${file:PATH}")

    def error(self, problem: str) -> ConfigurationError:
        """What is wrong with this value, in one sentence that never shows a secret."""
        shown = "" if self.named_secret else f" = {redact_url(self.raw)!r}"
        return ConfigurationError(f"{self.where}: {self.key}{shown} {problem}")


class Secret:
    """A password that shows as `***`; kept as it was written, and resolved by each `reveal()`.

    With `in_url`, the secret is the password inside the url that the value is. Pickled by reference only; `entry`
    is the value as it was written.
    """

    __slots__ = ("entry", "in_url")

    def __init__(self, value: Entry | str, in_url: bool = False) -> None:
        if isinstance(value, str):
            value = Entry("password", value, "a Secret made in code", Path.cwd(), Source.CODE)
        self.entry = value
        self.in_url = in_url

    def reveal(self) -> str:
        """The password itself; ConfigurationError where its reference does not resolve."""
        text = self.entry.resolve()
        return (split_password(text)[1] or "") if self.in_url else text

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


def split_password(url: str) -> tuple[str, str | None]:
    """A url without the password that it carries as user:password@ or ?password=, and that password."""
    password = None
    match = _FIND_USERINFO.search(url)
    if match:
        password = match["password"]
        url = url[: match.start("password") - 1] + url[match.end("password") :]
    match = _QUERY_PASSWORD.search(url)
    if match:
        password = match["password"]
        url = url[: match.start()] + (match["mark"] if match["more"] else "") + url[match.end() :]
    return url, None if password is None else unquote(password)


def passwords_in(text: str) -> list[str]:
    """The passwords that stand in a url, a conninfo, or any text with some in it."""
    return [match["password"] for find in (_FIND_USERINFO, _PARAMETER) for match in find.finditer(text)]


def redact_url(text: str) -> str:
    """A url, conninfo, or any text with some in it, with every password shown as ***."""
    text = _HIDE_USERINFO.sub(r"\g<head>***", text)
    return _PARAMETER.sub(r"\g<head>***", text)


def redact(text: str, secrets: Iterable[Secret | None] = ()) -> str:
    """A text with every password in it shown as ***: those of urls, and what the secrets reveal."""
    revealed = set()
    for secret in secrets:
        try:
            revealed.add(secret.reveal() if secret else "")
        except ConfigurationError:
            continue  # what cannot be resolved here is not in the text either
    for password in sorted(revealed - {""}, key=len, reverse=True):
        for form in (password, quote(password, safe="")):
            text = text.replace(form, "***")
    return redact_url(text)
