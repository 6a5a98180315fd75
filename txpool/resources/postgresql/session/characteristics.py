"""Transaction characteristics in PostgreSQL over psycopg: what is set on a connection stands in its BEGIN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import IsolationLevel

from txpool.sql.characteristics import Characteristics

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

LEVELS: Final = {
    "read-uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read-committed": IsolationLevel.READ_COMMITTED,
    "repeatable-read": IsolationLevel.REPEATABLE_READ,
    "serializable": IsolationLevel.SERIALIZABLE,
}


def level_of(characteristics: Characteristics) -> IsolationLevel | None:
    """psycopg's value for the level; None is the server's default."""
    return None if characteristics.isolation is None else LEVELS[characteristics.isolation]


def begin_as(raw: PsycopgRawConnection, characteristics: Characteristics) -> None:
    """Let the next transactions of a raw connection begin so. No I/O."""
    raw.isolation_level = level_of(characteristics)
    raw.read_only = characteristics.read_only


def beginning_of(raw: PsycopgRawConnection) -> str:
    """The BEGIN of a raw connection's transactions, as psycopg's own."""
    parts = ["begin"]
    if raw.isolation_level is not None:
        parts.append(f"isolation level {raw.isolation_level.name.replace('_', ' ')}")
    if raw.read_only is not None:
        parts.append("read only" if raw.read_only else "read write")
    if raw.deferrable is not None:
        parts.append("deferrable" if raw.deferrable else "not deferrable")
    return " ".join(parts)
