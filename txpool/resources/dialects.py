"""What differs between the databases of a local transaction: how it commits, rolls back, and is marked.

A commit has three ends, not two: it returns, it raises `Refused` (the database has answered no, and nothing of it
will ever be there), or it raises anything else, and nobody knows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

import psycopg

from txpool.drivers.base import Driver
from txpool.drivers.libpq import ACTIVE, IDLE, INERROR, INTRANS, Session, ends_session, failure, value
from txpool.errors import ProgrammingError, translate
from txpool.resources.base import Refused


class Dialect(Protocol):
    """One database's ways with a local transaction and with the table of marks."""

    #: How a parameter is written, and the type of a moment with its default.
    parameter: str
    moment: str

    def is_open(self, raw: Any) -> bool:
        """Whether there is anything to commit or roll back, without I/O; true where that cannot be told."""

    def commit(self, raw: Any) -> None:
        """Commit, durably; `Refused` is definite, any other error leaves it unknown."""

    def rollback(self, driver: Driver, raw: Any) -> None:
        """Roll back, or close the connection, which ends its transaction as well. Never raises an Exception."""

    def qualified(self, raw: Any, table: str) -> str | None:
        """The table's full name, which no search path and no temporary table hides; None where there is none."""

    def mark(self, raw: Any, table: str, row: dict[str, str], rides: Sequence[str]) -> list[str]:
        """Insert the row into the open transaction, answered, with durable commit; returns the rides it deleted."""

    def begin(self, raw: Any, lock_timeout: float, *, writes: bool) -> None:
        """Begin a durable transaction on a fresh connection that waits for no lock longer than that (seconds)."""


class PostgreSQL:
    """PostgreSQL over psycopg."""

    parameter = "%s"
    moment = "timestamptz not null default now()"

    def is_open(self, raw: psycopg.Connection[Any]) -> bool:
        return raw.pgconn.transaction_status != IDLE

    def commit(self, raw: psycopg.Connection[Any]) -> None:
        session = Session(raw)
        if not session.is_alive() or session.status != INTRANS:
            raise Refused(f"COMMIT was not sent: {why_not_open(session.status)}")
        session.send("commit")
        results = session.receive()
        error = failure(results)
        if error is not None and ends_session(error):
            raise error
        if error is not None:
            raise Refused(f"the database refused to commit: {error}") from error
        if not results or results[-1].command_status != b"COMMIT":
            raise Refused("the database answered COMMIT by ROLLBACK: a statement before it had failed")

    def rollback(self, driver: Driver, raw: psycopg.Connection[Any]) -> None:
        session = Session(raw)
        if session.status == ACTIVE:
            # An interrupted statement: its server process would go on with it, and hold its locks meanwhile.
            driver.cancel(raw)
            raw.close()
        elif session.status in (INTRANS, INERROR):
            try:
                session.run("rollback")
            except psycopg.Error:
                raw.close()

    def qualified(self, raw: psycopg.Connection[Any], table: str) -> str | None:
        session = Session(raw)
        (found,) = session.run(
            "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = "  # noqa: S608
            f"c.relnamespace where c.oid = to_regclass({session.quoted(table)})"
        )
        return value(found) if found.ntuples else None

    def mark(self, raw: psycopg.Connection[Any], table: str, row: dict[str, str], rides: Sequence[str]) -> list[str]:
        session = Session(raw)
        if session.status != INTRANS:
            raise Refused(f"the row was not written: {why_not_open(session.status)}")
        # In a repeatable read a delete may not see the row, or fail for it: there the rides wait for another.
        statements = [
            "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'",
            f"insert into {table} ({', '.join(row)}) values ({', '.join(map(session.quoted, row.values()))})",  # noqa: S608
        ]
        if rides:
            statements.append(
                f"delete from {table} where xid in ({', '.join(map(session.quoted, rides))}) "  # noqa: S608
                "and current_setting('transaction_isolation') = 'read committed' returning xid"
            )
        try:
            results = session.run("; ".join(statements))
        except psycopg.errors.UniqueViolation as met:
            raise Refused(
                "recovery's abort record stands where the row would: it has ended this process's work"
            ) from met
        return [bytes(results[-1].get_value(n, 0) or b"").decode() for n in range(results[-1].ntuples)] if rides else []

    def begin(self, raw: psycopg.Connection[Any], lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        raw.read_only = False
        raw.execute(
            "select set_config('synchronous_commit', 'on', true), set_config('lock_timeout', %s, true)",
            [str(int(lock_timeout * 1000))],
        )


class SQLite:
    """SQLite over sqlite3."""

    parameter = "?"
    moment = "text not null default current_timestamp"

    def is_open(self, raw: sqlite3.Connection) -> bool:
        try:
            return raw.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return True

    def commit(self, raw: sqlite3.Connection) -> None:
        try:
            if not raw.in_transaction:
                raise Refused("COMMIT was not sent: the transaction has ended before it")
            raw.commit()
        except sqlite3.Error as error:
            translate(error)
            if isinstance(error, sqlite3.ProgrammingError):
                raise Refused(f"COMMIT was not sent: {error}") from error
            if _primary(error) in _DEFINITE:
                raise Refused(f"SQLite refused to commit: {error}") from error
            raise

    def rollback(self, driver: Driver, raw: sqlite3.Connection) -> None:
        try:
            raw.rollback()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                raw.close()

    def qualified(self, raw: sqlite3.Connection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        schema = schema or "main"
        query = f"select name from {schema}.sqlite_master where type = 'table' and lower(name) = lower(?)"  # noqa: S608
        return f"{schema}.{name}" if raw.execute(query, [name]).fetchone() else None

    def mark(self, raw: sqlite3.Connection, table: str, row: dict[str, str], rides: Sequence[str]) -> list[str]:
        cursor = sqlite3.Cursor(raw)
        if not raw.in_transaction:
            raise Refused("the row was not written: the transaction has ended before it")
        (journal,) = cursor.execute("pragma journal_mode").fetchone()
        (level,) = cursor.execute("pragma synchronous").fetchone()
        if level < _SYNCHRONOUS.get(journal, 3):
            raise ProgrammingError(
                f"synchronous={level} with journal_mode={journal} does not survive a power failure, and a mark must: "
                "leave both pragmas alone. Nothing is committed"
            )
        names = ", ".join(row)
        try:
            cursor.execute(f"insert into {table} ({names}) values ({_marks(row)})", [*row.values()])  # noqa: S608
        except sqlite3.IntegrityError as met:
            raise Refused(
                "recovery's abort record stands where the row would: it has ended this process's work"
            ) from met
        cursor.execute(f"delete from {table} where xid in ({_marks(rides)})", [*rides])  # noqa: S608
        return [*rides]

    def begin(self, raw: sqlite3.Connection, lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = None
        raw.execute(f"pragma busy_timeout = {int(lock_timeout * 1000)}")
        raw.execute("begin immediate" if writes else "begin")


def why_not_open(status: int) -> str:
    """What a libpq transaction status other than INTRANS means to people."""
    return _STATES.get(status, "the connection was lost before it")


DIALECTS: dict[str, Dialect] = {"psycopg": PostgreSQL(), "sqlite3": SQLite()}

_STATES = {
    IDLE: "the transaction has ended before it",
    ACTIVE: "a statement is still executing",
    INERROR: "a statement before it has failed",
}
# The least `pragma synchronous` of a commit that survives the power, by journal mode: FULL, else EXTRA.
_SYNCHRONOUS = {"wal": 2}
# BUSY, FULL, READONLY, INTERRUPT and CONSTRAINT come before SQLite's commit point; an I/O error may come after it.
_DEFINITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_CONSTRAINT,
    }
)


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code, which is the low byte of the extended one."""
    return error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else -1


def _marks(values: Sequence[str] | dict[str, str]) -> str:
    return ", ".join("?" * len(values))
