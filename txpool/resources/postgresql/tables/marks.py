"""A table of marks in PostgreSQL over psycopg."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from txpool.resources.base import Refused
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, WrongTable
from txpool.resources.postgresql.dialect import PostgreSQLDialect
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.session.libpq import INTRANS, value, why_not_open
from txpool.resources.postgresql.tables import trust

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

#: The whole name of a table, by a name that is a literal or a parameter.
QUALIFIED_NAME = qualified(
    "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
    "where c.oid = to_regclass({})"
)
_READ_COMMITTED = qualified("current_setting('transaction_isolation') = 'read committed'")
_SYNCHRONOUS = qualified("current_setting('synchronous_commit')")
_IS_IDENTITY = qualified("xid = {} and action_uid = {}")
_IS_ROW = qualified("ctid = {}")
_OF_THESE = qualified("xid = any (array[{}])")
_BEGIN = qualified("select set_config('synchronous_commit', 'on', true), set_config('lock_timeout', %s, true)")


class PostgreSQLMarks(Marks):
    """The table of marks in PostgreSQL; a row's key for `commit_row` is its ctid."""

    parameter = "%s"
    made_at_type = qualified("pg_catalog.timestamptz not null default now()")
    text_type = "pg_catalog.text"
    spelled = staticmethod(spelled)

    def qualified_name(self, raw: PsycopgRawConnection, table: str) -> str | None:
        session = raw.session
        (found,) = session.run(QUALIFIED_NAME.format(session.quoted(table)))
        return value(found) if found.ntuples else None

    def delete(self, driver: Driver, raw: PsycopgRawConnection, table: str, keys: Sequence[str]) -> None:
        driver.execute(raw, self.spelled(f"delete from {table} where xid = any (%s)"), [[*keys]])

    def require_ours(self, raw: psycopg.Connection[Any], table: str, roles: Collection[str], *, writes: bool) -> None:
        (trust.require_locked if writes else trust.require_relations)(psycopg.Cursor(raw), table, roles=roles)

    def is_sole_writer(self, raw: PsycopgRawConnection) -> bool:
        return False

    def database_identity(self, raw: PsycopgRawConnection) -> str:
        return str(raw.identity)

    def mark(
        self,
        raw: PsycopgRawConnection,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        session = raw.session
        if session.status != INTRANS:
            raise Refused(f"the row was not written: {why_not_open(raw)}")
        message = f"insert into {table} ({', '.join(row)}) "
        values = ", ".join(map(session.quoted, row.values()))
        # In a repeatable read transaction, a DELETE may not see the finished rows, or may fail: another transaction
        # deletes them. Nor is the identity read there: the snapshot may be older than the identity, and a serializable
        # transaction's read would make concurrent ones fail.
        unchecked = bool(identity) and raw.marks_identity != identity
        if unchecked:
            message += (
                f"select {values} where case when {_READ_COMMITTED} then exists (select from {table} where "
                f"{_IS_IDENTITY.format(session.quoted(IDENTITY), session.quoted(identity))}) else true end "
                f"returning ctid, {_SYNCHRONOUS}, {_READ_COMMITTED}"
            )
        else:
            message += f"values ({values}) returning ctid, {_SYNCHRONOUS}"
        if delete:
            keys = ", ".join(map(session.quoted, delete))
            message += f"; delete from {table} where {_OF_THESE.format(keys)} and {_READ_COMMITTED} returning xid"
        try:
            inserted, *deleted = session.run(message, until)
        except psycopg.errors.UniqueViolation as error:
            raise AbortRecorded from error
        if not inserted.ntuples:
            raise WrongTable
        if unchecked and inserted.get_value(0, 2) == b"t":
            raw.marks_identity = identity
        if inserted.get_value(0, 1) == b"off":
            session.run("set local synchronous_commit = on", until)
        gone = [value(result, number) or "" for result in deleted for number in range(result.ntuples)]
        return value(inserted) or "", gone

    def commit_row(self, raw: PsycopgRawConnection, table: str, row: str, branches: str) -> None:
        # By ctid: a serializable transaction's search by key would make concurrent ones fail.
        session = raw.session
        update = f"update {table} set branches = {session.quoted(branches)} where {_IS_ROW.format(session.quoted(row))}"
        PostgreSQLDialect.commit(raw, f"{update}; commit")

    def begin(self, raw: psycopg.Connection[Any], lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        raw.read_only = False
        raw.execute(
            _BEGIN,
            [str(int(lock_timeout * 1000))],
        )
