"""What differs between the databases of a local transaction: how it commits, rolls back, and is marked.

A commit has three ends, not two: it returns, it raises `Refused` (the database has answered no, and nothing of it
will ever be there), or it raises anything else, and nobody knows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Any, Protocol

import psycopg

from txpool.errors import ProgrammingError, translate
from txpool.resources.base import Reading, Refused
from txpool.resources.driver import Driver
from txpool.resources.patience import Patience
from txpool.resources.postgresql import trust
from txpool.resources.postgresql.libpq import (
    ACTIVE,
    IDLE,
    INERROR,
    INTRANS,
    Session,
    ends_session,
    failure,
    value,
    why_not_open,
)
from txpool.resources.postgresql.reading import PostgreSQLReading
from txpool.xid import PREFIX


class Dialect(Protocol):
    """One database's ways with a local transaction and with the table of marks."""

    #: How a parameter is written, and the type of a moment with its default.
    parameter: str
    moment: str

    def is_open(self, raw: Any) -> bool:
        """Whether there is anything to commit or roll back, without I/O; true where that cannot be told."""

    def watch(self, raw: Any) -> None:
        """From now on it is noted what the command tags show of what is executed on the connection."""

    def reading(
        self, datasource: str, driver: Driver, raw: Any, patience: Patience, *, committing: bool
    ) -> Reading | None:
        """How to ask whether only reads were executed since `watch`; None as `Participant.reading`."""

    def commit(self, raw: Any) -> None:
        """Commit, durably; `Refused` is definite, any other error leaves it unknown."""

    def rollback(self, driver: Driver, raw: Any, until: float | None) -> None:
        """Roll back, or close the connection, which ends its transaction as well. Never raises an Exception.

        `until` is when, by the monotonic clock, an answer is not waited for any more.
        """

    def qualified(self, raw: Any, table: str) -> str | None:
        """The table's full name, which no search path and no temporary table hides; None where there is none."""

    def require_ours(self, raw: Any, table: str, roles: Collection[str], *, writes: bool) -> None:
        """OperationalError where it belongs to somebody who is none of ours; `roles` are, and the session's own.

        Where it is written over the connection, it stays as it is until the transaction ends.
        """

    def within(self, raw: Any) -> Any | None:
        """A cursor in the connection's open transaction, where nobody else can write until that ends; else None."""

    def place(self, raw: Any) -> str:
        """What the database is known by on its server; empty where that cannot be told."""

    def mark(
        self,
        raw: Any,
        table: str,
        row: dict[str, str],
        rides: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        """Insert the row into the open transaction, answered, with durable commit.

        Returns where the row is, and the rides that were deleted. `Strayed` where the table has another identity; that
        is looked at once for a connection, since none can move to another database.
        """

    def seal(self, raw: Any, table: str, where: str, branches: str) -> None:
        """As `commit`, with the row that is there rewritten just before it."""

    def begin(self, raw: Any, lock_timeout: float, *, writes: bool) -> None:
        """Begin a durable transaction on a fresh connection that waits for no lock longer than that (seconds)."""


class Strayed(Refused):
    """The connection leads to another table of marks than the one whose identity is known."""

    def __init__(self) -> None:
        super().__init__(
            "the table of marks is not the one that its datasource had before: it was replaced, or the url leads "
            "elsewhere now. The next transaction goes by what is there"
        )


class Superseded(Refused):
    """An abort record stands under the key."""

    def __init__(self) -> None:
        super().__init__("recovery's abort record stands where the row would: it has ended this process's work")


class PostgreSQL:
    """PostgreSQL over psycopg."""

    parameter = "%s"
    moment = "timestamptz not null default now()"

    def is_open(self, raw: psycopg.Connection[Any]) -> bool:
        return raw.pgconn.transaction_status != IDLE

    def watch(self, raw: Any) -> None:
        raw.wrote = raw.notified = False

    def reading(
        self, datasource: str, driver: Driver, raw: Any, patience: Patience, *, committing: bool
    ) -> Reading | None:
        if raw.wrote or (raw.notified and not committing):
            return None
        return PostgreSQLReading(datasource, driver, raw, patience)

    def commit(self, raw: psycopg.Connection[Any]) -> None:
        self._commit(Session(raw), "commit")

    def _commit(self, session: Session, message: str) -> None:
        if not session.is_alive() or session.status != INTRANS:
            raise Refused(f"COMMIT was not sent: {why_not_open(session.status)}")
        session.send(message)
        results = session.receive()
        error = failure(results)
        if error is not None and ends_session(error) and error.sqlstate != _IDLE_TOO_LONG:
            raise error
        if error is not None:
            raise Refused(f"the database refused to commit: {error}") from error
        if not results or results[-1].command_status != b"COMMIT":
            raise Refused("the database answered COMMIT by ROLLBACK: a statement before it had failed")

    def rollback(self, driver: Driver, raw: psycopg.Connection[Any], until: float | None) -> None:
        session = Session(raw)
        if session.status == ACTIVE:
            # An interrupted statement: its server process would go on with it, and hold its locks meanwhile.
            driver.cancel(raw, None if until is None else max(until - monotonic(), 0.1))
            raw.close()
        elif session.status in (INTRANS, INERROR):
            try:
                session.run("rollback", until)
            except psycopg.Error:
                raw.close()

    def qualified(self, raw: psycopg.Connection[Any], table: str) -> str | None:
        session = Session(raw)
        (found,) = session.run(
            "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = "  # noqa: S608
            f"c.relnamespace where c.oid = to_regclass({session.quoted(table)})"
        )
        return value(found) if found.ntuples else None

    def require_ours(self, raw: psycopg.Connection[Any], table: str, roles: Collection[str], *, writes: bool) -> None:
        (trust.require_locked if writes else trust.require_relations)(psycopg.Cursor(raw), table, roles=roles)

    def within(self, raw: Any) -> None:
        return None

    def place(self, raw: Any) -> str:
        return str(raw.identity)

    def mark(
        self,
        raw: Any,
        table: str,
        row: dict[str, str],
        rides: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        session = Session(raw)
        if session.status != INTRANS:
            raise Refused(f"the row was not written: {why_not_open(session.status)}")
        # In a repeatable read a delete may not see the row, or fail for it: there the rides wait for another. Nor is
        # the identity looked at there: a snapshot may be older, and a serializable read would fail its neighbours.
        statements = [
            "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'",
            f"insert into {table} ({', '.join(row)}) select {', '.join(map(session.quoted, row.values()))}",
        ]
        unseen = bool(identity) and raw.marks != identity
        if unseen:
            statements[-1] += (
                f" where case when {_COMMITTED} then exists (select from {table} where xid = "
                f"{session.quoted(IDENTITY)} and action_uid = {session.quoted(identity)}) else true end"
            )
        statements[-1] += f" returning ctid, {_COMMITTED if unseen else 'true'}"
        if rides:
            statements.append(
                f"delete from {table} where xid in ({', '.join(map(session.quoted, rides))}) "  # noqa: S608
                f"and {_COMMITTED} returning xid"
            )
        try:
            results = session.run("; ".join(statements), until)
        except psycopg.errors.UniqueViolation as met:
            raise Superseded from met
        if not results[1].ntuples:
            raise Strayed
        if results[1].get_value(0, 1) == b"t":
            raw.marks = identity
        deleted = results[2] if rides else None
        gone = [bytes(deleted.get_value(n, 0) or b"").decode() for n in range(deleted.ntuples)] if deleted else []
        return value(results[1]) or "", gone

    def seal(self, raw: psycopg.Connection[Any], table: str, where: str, branches: str) -> None:
        # By its place: a serializable search for it would fail the neighbours. It waits for nobody, being our own.
        session = Session(raw)
        update = f"update {table} set branches = {session.quoted(branches)} where ctid = {session.quoted(where)}"  # noqa: S608
        self._commit(session, f"{update}; commit")

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

    def watch(self, raw: sqlite3.Connection) -> None:
        """Nothing: a transaction holds the write lock from its beginning, so it is no reader."""

    def reading(
        self, datasource: str, driver: Driver, raw: sqlite3.Connection, patience: Patience, *, committing: bool
    ) -> None:
        return None

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

    def rollback(self, driver: Driver, raw: sqlite3.Connection, until: float | None) -> None:
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

    def require_ours(self, raw: sqlite3.Connection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """A file counts by its permissions."""

    def within(self, raw: sqlite3.Connection) -> sqlite3.Cursor | None:
        return sqlite3.Cursor(raw) if raw.in_transaction else None

    def place(self, raw: Any) -> str:
        return ""

    def mark(
        self,
        raw: Any,
        table: str,
        row: dict[str, str],
        rides: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
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
        unseen = bool(identity) and raw.marks != identity
        there = f" where exists (select 1 from {table} where xid = ? and action_uid = ?)" if unseen else ""  # noqa: S608
        values = [*row.values(), *((IDENTITY, identity) if unseen else ())]
        try:
            if cursor.execute(f"insert into {table} ({names}) select {_marks(row)}{there}", values).rowcount != 1:
                raise Strayed
            raw.marks = identity
        except sqlite3.IntegrityError as met:
            raise Superseded from met
        cursor.execute(f"delete from {table} where xid in ({_marks(rides)})", [*rides])  # noqa: S608
        return row["xid"], [*rides]

    def seal(self, raw: sqlite3.Connection, table: str, where: str, branches: str) -> None:
        try:
            # Without a transaction it would begin one of its own, and that would commit.
            if raw.in_transaction:
                sqlite3.Cursor(raw).execute(f"update {table} set branches = ? where xid = ?", [branches, where])  # noqa: S608
        except sqlite3.Error as error:
            translate(error)
            raise Refused(f"COMMIT was not sent: {error}") from error
        self.commit(raw)

    def begin(self, raw: sqlite3.Connection, lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = None
        raw.execute(f"pragma busy_timeout = {int(lock_timeout * 1000)}")
        raw.execute("begin immediate" if writes else "begin")


#: The key of the row that holds the table's own identity: it can be no gtrid.
IDENTITY = f"{PREFIX}:identity"

_COMMITTED = "current_setting('transaction_isolation') = 'read committed'"

# idle_in_transaction_session_timeout: the server looks at it for the last time before it executes a command: what
# is answered this way was never executed. Of all that ends a session this alone is certain.
_IDLE_TOO_LONG = "25P03"

DIALECTS: dict[str, Dialect] = {"psycopg": PostgreSQL(), "sqlite3": SQLite()}

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
