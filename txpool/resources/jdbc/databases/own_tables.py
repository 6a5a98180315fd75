"""The identity and generation of a database that has none, H2 or Derby: two small tables in the schema TXPOOL.

The identity is a random name, once for each database. A process adds a token when it first connects, and its records
carry it: a database that was restored from a backup does not have the tokens that were added later.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

_IDENTITY: Final = "select name from txpool.server where one = 1"
_ADD_IDENTITY: Final = "insert into txpool.server (one, name) values (1, ?)"
_TOKEN: Final = "select token from txpool.generations where token = ?"  # noqa: S105
_ADD_TOKEN: Final = "insert into txpool.generations (token) values (?)"  # noqa: S105
_NEWEST: Final = "select max(number) from txpool.generations"
_DROP_OLD: Final = "delete from txpool.generations where number <= ?"
_KEPT: Final = 100_000
CREATE: Final = (
    "create schema txpool",
    "create table txpool.server (one integer not null primary key, name char(24) not null)",
    "create table txpool.generations (number bigint generated always as identity primary key, "
    "token char(24) not null unique)",
)


def identity(raw: XaConnection, *, writes: bool) -> str:
    """The database's identity; empty if it has none, or if this role may not read it. In autocommit mode."""
    found = _first(raw, _IDENTITY)
    if found is None and writes:
        for statement in CREATE:
            with suppress(Exception):  # another process may have created it
                raw.run(statement).close()
        with suppress(Exception):
            raw.run(_ADD_IDENTITY, [secrets.token_hex(12)]).close()
        found = _first(raw, _IDENTITY)
    return found or ""


def has_generation(raw: XaConnection, generation: str) -> bool:
    """Whether this is, for all that is known, the database that the token was added to. The driver's error."""
    rows = raw.run(_TOKEN, [generation]).fetchall()
    return bool(rows)


def add_generation(raw: XaConnection) -> str:
    """Add a token, in autocommit mode; empty if that is not allowed."""
    token = secrets.token_hex(12)
    try:
        raw.run(_ADD_TOKEN, [token]).close()
        newest = _first(raw, _NEWEST)
        raw.run(_DROP_OLD, [int(newest or 0) - _KEPT]).close()
    except Exception:
        return ""
    return token


def _first(raw: XaConnection, query: str) -> Any:
    try:
        rows = raw.run(query).fetchall()
    except Exception:
        if raw.lost:
            raise
        return None
    return rows[0][0] if rows else None
