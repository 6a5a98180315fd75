"""Logins: how a datasource that was made in code is reached, as the log notes it, and as `recovery.noted` allows it.

A login is a url that names user, host, port and database: postgresql://app:${env:PW}@db1:5432/orders. In the place of
the password it has a reference, or nothing. A function that supplies credentials stands behind the url:
postgresql://db1:5432/orders by vault.tokens:orders. A login never has a password in it.

A noted login is a claim: whoever may write into the log may have written it. So it is compared with what the file
allows, and nothing else of it is used but the name of the database, if the file has * for that; and whether its
branches write rows, into a table of txpool's own name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from txpool.config.secrets import FUNCTION, ConfiguredValue, Secret
from txpool.config.url import Parts, UrlError, decoded, logins_in, split
from txpool.errors import ConfigurationError

#: What a note writes for each beginning that a url may have.
_SCHEMES: Final = {
    "postgresql://": "postgresql://",
    "postgres://": "postgresql://",
    "mysql://": "mysql://",
    "mariadb://": "mysql://",
}
REFERENCE: Final = re.compile(r"\$\{(?:env:(?P<variable>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<path>[^\0-\x1f{}]+))\}")
_STANDS_FOR: Final = "\0"  # a reference
#: What a note says of branches that write rows (xa.evidence = row).
_ROWS: Final = " with rows"
_FORM: Final = re.compile(rf"(?P<url>\S+)(?:\s+by\s+(?P<function>{FUNCTION}))?(?P<rows>{_ROWS})?", re.ASCII)
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[\w:.%]+)\]|(?P<name>[\w.%~-]+)):(?P<port>[0-9]{1,5})", re.ASCII)
#: The names that a note may give a database: no text that a driver could take for something else.
_DATABASE: Final = re.compile(r"(?!\.)[\w$.-]{0,64}")
_ANY: Final = "*"
#: What the url says in its own place.
_OWN_PLACE: Final = frozenset({"user", "password", "host", "port", "dbname", "service"})
_RIGHT: Final = "write postgresql://user:${env:NAME}@host:port/database, or mysql://… likewise"


@dataclass(frozen=True, slots=True)
class Login:
    """A login. It has several `hosts` only in a file, and so has it * for any database."""

    scheme: str
    user: str
    #: Each with its port. A path is the folder of a Unix socket.
    hosts: tuple[tuple[str, str], ...]
    database: str
    #: ${env:NAME}, or ${file:PATH} with an absolute path; empty if the login names no reference.
    reference: str = ""
    #: package.module:function, which supplies the credentials.
    function: str = ""
    #: Whether its branches write rows. Only a note says so.
    rows: bool = False

    def __str__(self) -> str:
        password = f":{self.reference}" if self.reference else ""
        user = f"{quote(self.user, safe='')}{password}@" if self.user else ""
        hosts = ",".join(f"{_quoted_host(host)}:{port}" for host, port in self.hosts)
        by = f" by {self.function}" if self.function else ""
        rows = _ROWS if self.rows else ""
        return f"{self.scheme}{user}{hosts}/{quote(self.database, safe='')}{by}{rows}"


@dataclass(frozen=True, slots=True)
class AllowedLogin:
    """One login that `recovery.noted` allows, and how recovery connects by it."""

    login: Login
    #: The url without a password, up to the database, and the parameters behind it.
    address: str
    parameters: Mapping[str, str] = field(hash=False)
    entry: ConfiguredValue = field(repr=False)

    def allows(self, noted: Login) -> bool:
        """Whether this is what a note says. One that names no reference and no function is reached by the file's."""
        own = self.login
        return (
            (noted.scheme, noted.user) == (own.scheme, own.user)
            and noted.hosts[0] in own.hosts
            and own.database in (_ANY, noted.database)
            and (noted.reference, noted.function) in (("", ""), (own.reference, own.function))
        )

    @property
    def password(self) -> Secret | None:
        """The password, by the file's own reference."""
        if not self.login.reference:
            return None
        entry = self.entry
        where = f"{entry.where}: {entry.key}"
        return Secret(replace(entry, key="password", raw=self.login.reference, where=where))


def read_note(text: str) -> Login | None:
    """The login that a note has; None if it is none that recovery could follow."""
    try:
        login, parts = _parse(text, Path("/"))
    except UrlError:
        return None
    plain = text.isprintable() and not parts.parameters and len(login.hosts) == 1
    return login if plain and _DATABASE.fullmatch(login.database) and str(login) == text else None


def read_allowed(entry: ConfiguredValue) -> tuple[AllowedLogin, ...]:
    """The logins of `recovery.noted`; ConfigurationError, which shows no password."""
    found = []
    for number, text in enumerate(logins_in(entry.raw), 1):
        try:
            found.append(_allowed(replace(entry, raw=text)))
        except UrlError as error:
            problem = f"is wrong in its login number {number}, which {error}"
        else:
            continue
        # Outside of the handler, and without the value: it may have a password in it.
        raise ConfigurationError(f"{entry.where}: {entry.key} {problem}")
    return tuple(found)


def _allowed(entry: ConfiguredValue) -> AllowedLogin:
    login, parts = _parse(entry.raw, entry.folder)
    if not login.database and login.scheme == "postgresql://":
        raise UrlError("names no database: write it, or /* for any")
    parameters = {decoded(name): decoded(value) for name, value in parts.parameters}
    if parameters.keys() & _OWN_PLACE:
        raise UrlError("has a parameter that repeats a part of the url: leave it out")
    user = f"{parts.user}@" if parts.user else ""
    return AllowedLogin(login, f"{login.scheme}{user}{parts.hosts}/", parameters, entry)


def _parse(text: str, folder: Path) -> tuple[Login, Parts]:
    """A login, and the parts of its url; UrlError, which shows no part of it."""
    if _STANDS_FOR in text:
        raise UrlError("has a NUL in it")
    references = list(REFERENCE.finditer(text))
    match = _FORM.fullmatch(REFERENCE.sub(_STANDS_FOR, text))
    if match is None:
        raise UrlError(f"is none: {_RIGHT}")
    parts = split(match["url"])
    scheme = _SCHEMES.get(parts.head)
    hosts = [_ADDRESS.fullmatch(host) for host in parts.hosts.split(",")]
    user, database = decoded(parts.user), decoded(parts.database.removeprefix("/"))
    by_reference = parts.password == _STANDS_FOR
    if scheme is None or None in hosts:
        raise UrlError(f"names no host with its port: {_RIGHT}")
    if (parts.password and not by_reference) or len(references) != by_reference:
        raise UrlError(f"has a password in it, or a reference in another place: {_RIGHT}")
    if by_reference and match["function"]:
        raise UrlError("has a reference and a function: leave one out")
    if not user and not match["function"]:
        raise UrlError(f"names no user: {_RIGHT}")
    reference = ""
    if by_reference:
        path = references[0]["path"]
        reference = references[0][0] if path is None else f"${{file:{os.path.abspath(folder / path)}}}"
    places = tuple((same_host(decoded(each["v6"] or each["name"])), each["port"]) for each in hosts if each)
    return Login(scheme, user, places, database, reference, match["function"] or "", bool(match["rows"])), parts


def same_host(host: str) -> str:
    return host if host.startswith("/") else host.lower()


def _quoted_host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="~")
