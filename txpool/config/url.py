"""The url of a server, parsed strictly: it is refused unless it is certain which part of it is the password.

libpq is more lenient: it takes the text after the first @ of a password for a host, and its errors would show that. So
every character that could end a part of the url must be percent-encoded in it, and no error here shows a part of it.
A brace belongs to a reference that was not resolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from txpool.config import jdbc
from txpool.resource_managers import of_url

#: Words by which keys and parameters of secrets are recognised.
SECRET_WORD = r"(?:password|passwd|passphrase|pwd|secret|token|credential|scram_(?:client|server)_key)"  # noqa: S105

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<userinfo>(?P<user>[^:/?#@{}]*)(?::(?P<password>[^/?#@]*))?@)?"
    r"(?P<hosts>[^/?#@{}]*)(?P<database>/[^?#@{}]*)?(?:\?(?P<query>[^#@{}]*))?"
)
# NUL stands for a reference.
_HOST = r"(?:\[[\w:.%\0-]*\]|[\w.%~\0-]*)(?::(?:[0-9]{0,5}|\0+))?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*://)")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
#: A url that no resource manager knows, such as that of a resource of a user's own, with no user and no parameter.
_PLAIN = re.compile(r"[a-z][a-z0-9+.-]*:/*[^:@?;=\s\0{}]*")
_OTHER_SECRET = re.compile(SECRET_WORD, re.IGNORECASE)
#: A literal between two references, or behind a colon and before a reference, which may be the end of a password: a
#: port and the comma behind it are none.
_UNCLEAR_HOSTS = re.compile(r"\0[^\0]*[^\0:,][^\0]*\0|:(?!(?:\d*,[^\0:,]*:)*\d*,\0)[^\0]*[^\0:,\d][^\0]*\0", re.ASCII)
_ENCODE = "write each of @ : / ? # & = % and space in it as % and two digits (@ is %40, a space %20)"
_OWN_KEY = "or give the password a key of its own, as ${env:NAME}"


class UrlError(ValueError):
    """A url is refused; the message says what is wrong, and shows no part of the url."""


@dataclass(frozen=True, slots=True)
class Url:
    """A url without its password, and the password, decoded; None if it has none."""

    without: str
    password: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a url as they stand in it, percent-encoded; `database` with its slash."""

    head: str
    userinfo: bool
    user: str
    password: str
    hosts: str
    database: str
    parameters: tuple[tuple[str, str], ...]


def is_server(text: str) -> bool:
    """Whether a value begins as the url of a server does, which may have a password in it."""
    manager = of_url(text)
    return manager is not None and not manager.url_is_path


def path_scheme(text: str) -> str:
    """How the url of a file begins, such as sqlite:///; empty for any other."""
    manager = of_url(text)
    if manager is None or not manager.url_is_path:
        return ""
    return next(scheme for scheme in manager.schemes if text.startswith(scheme))


def logins_in(text: str) -> list[str]:
    """The logins of a list with commas between them; see `txpool.config.logins`."""
    return _BETWEEN_URLS.split(text.strip())


def parse(text: str) -> Url:
    """Separate a url and its password; UrlError unless it can be read in one way only."""
    parts = split(text)
    passwords = [parts.password] if parts.password else []
    kept = []
    for name, value in parts.parameters:
        if decoded(name) == "password":
            passwords += [value] if value else []
        else:
            kept.append(f"{name}={value}")
    if len(passwords) > 1:
        raise UrlError("gives more than one password: leave one")
    user = f"{parts.user}@" if parts.userinfo else ""
    query = f"?{'&'.join(kept)}" if kept else ""
    without = f"{parts.head}{user}{parts.hosts}{parts.database}{query}"
    return Url(without, decoded(passwords[0]) if passwords else None)


def may_hold_password(text: str) -> bool:
    """Whether a url, with NUL in place of each reference, may have a password in it, or a part of one.

    A reference may stand for anything: the user and the beginning of the password, or its end and the host. The
    resolved url is taken to be one that `parse` accepts: then nothing after a / is a part of the password.
    """
    if jdbc.is_url(text):
        return jdbc.password_in(text)
    if path_scheme(text) or text == "memory:" or (_PLAIN.fullmatch(text) and not _OTHER_SECRET.search(text)):
        return False
    try:
        parts = split(re.sub(r"\A\0+", "postgresql://\0", text))
    except UrlError:
        return True
    passwords = [parts.password, *(value for name, value in parts.parameters if decoded(name) == "password")]
    if any(password.replace("\0", "") for password in passwords):
        return True
    if parts.userinfo:
        unclear = re.search(r"\0[^\0]", parts.user)
    else:
        unclear = _UNCLEAR_HOSTS.search(re.sub(r"\[[^\0\]]*\]", "6", parts.hosts))
    return bool(unclear) or any(re.search(r"\0[^\0]", part) for pair in parts.parameters for part in pair)


def split(text: str) -> Parts:
    """The parts of a server's url; UrlError unless it can be read in one way only."""
    if not all(c == "\0" or (c.isprintable() and c != " ") for c in text):
        raise UrlError(f"has a space in it, a line end, or another character that no url may have: {_ENCODE}")
    if _BAD_PERCENT.search(text):
        raise UrlError(f"has a % in it that stands for no character: {_ENCODE}")
    match, manager = _URL.fullmatch(text), of_url(text)
    if match is None or manager is None or manager.url_is_path or not _HOSTS.fullmatch(match["hosts"]):
        raise UrlError(f"can be read in more than one way, or in none: {_ENCODE}; {_OWN_KEY}")
    pairs = []
    for number, piece in enumerate(match["query"].split("&") if match["query"] else (), 1):
        name, mark, value = piece.partition("=")
        known = decoded(name)
        if not mark or "=" in value or known not in manager.url_parameters():
            what = f"has a parameter that {manager.database} does not know, its number {number}"
            raise UrlError(f"{what}: {_ENCODE}; {_OWN_KEY}")
        if known != "password" and _OTHER_SECRET.search(known):
            raise UrlError(f"has {known} in it: passwords have keys of their own, such as driver.{known}")
        pairs.append((name, value))
    userinfo = match["userinfo"] is not None
    for part in (match["user"] or "", match["password"] or "", match["database"] or "", *(value for _, value in pairs)):
        decoded(part)
    return Parts(
        match["scheme"],
        userinfo,
        match["user"] or "",
        match["password"] or "",
        match["hosts"],
        match["database"] or "",
        tuple(pairs),
    )


def decoded(part: str) -> str:
    """A part of a url without its percent-encoding; UrlError if it is no UTF-8 text."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError:
        pass  # it has the text: the error below is raised outside of the handler, so that it is not chained
    raise UrlError("is not UTF-8 text, once its % are decoded: write it so")
