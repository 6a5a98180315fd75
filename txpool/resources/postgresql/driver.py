"""psycopg 3: PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import conninfo, sql
from psycopg.rows import tuple_row

from txpool.config.secrets import without_secrets
from txpool.errors import ConfigurationError, OperationalError, translated
from txpool.resources.dialect import Dialect
from txpool.resources.marks import Marks
from txpool.resources.postgresql.connection import DeadlineConnection, check_alive, deadline_after, roll_back
from txpool.resources.postgresql.dialect import PostgreSQLDialect
from txpool.resources.postgresql.libpq import COMMAND_OK, IDLE, INERROR, INTRANS, Session, failure, value
from txpool.resources.postgresql.marks import PostgreSQLMarks
from txpool.resources.postgresql.psycopg_private import results_of, sent_by, tag_of

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from txpool.config.settings import DataSourceSettings

# The tags of commands after which the session, or its transaction, is no longer what it was.
_BEGINNING = frozenset({b"BEGIN", b"START TRANSACTION"})
_ENDING = frozenset({b"COMMIT", b"PREPARE TRANSACTION"})
# What a user may have made in the temporary schema, or have kept open, is among these. DO and CALL may do anything.
_PREPARING = frozenset({b"PREPARE", b"DO", b"CALL"})
_MAKING = frozenset(b"CREATE " + kind for kind in (b"TABLE", b"TABLE AS", b"VIEW", b"SEQUENCE", b"FUNCTION", b"TYPE"))
_SELECT_INTO = b"SELECT INTO"  # ours: the server's is that of any other SELECT
_CHANGING = frozenset({b"SET", b"LISTEN", b"DECLARE CURSOR", _SELECT_INTO, *_MAKING, *_PREPARING})
# A cursor of psycopg's on the server shows the tag of none.
_NOTED = frozenset({*_BEGINNING, *_ENDING, *_CHANGING, b"ROLLBACK", b"NOTIFY", b""})
# How those begin after which it is worth asking whether anything was written: a SELECT may have. NOTIFY writes nothing.
_READING = (b"SELECT", b"FETCH", b"SHOW", b"EXPLAIN", b"SET", b"SAVEPOINT", b"RELEASE", b"ROLLBACK", b"NOTIFY")
_CHAINED = re.compile(rb"\band\s+chain\b", re.IGNORECASE)

# What DISCARD ALL does, but for the prepared statements: psycopg keeps account of its own, which are not from SQL.
_RESET_SESSION = (
    "set session authorization default; reset all; close all; unlisten *; discard temp; discard sequences; "
    "select pg_advisory_unlock_all()"
)
_DEALLOCATE = (
    "; do $$ declare it record; begin for it in select name from pg_prepared_statements where from_sql "
    "loop execute format('deallocate %I', it.name); end loop; end $$"
)
# What every session runs first. The types of all arguments are exact: what somebody has made in a schema of the search
# path, which fits better than pg_catalog's, would run as us.
# The timeline goes with a transaction's id: after a failover that lost some, the ids are given out again.
_TIMELINE = "case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end"
_ROLE = "to_regrole(quote_ident(session_user::text))::oid"
_DATABASE = "(select oid::text from pg_database where datname = current_database())"
_CANCEL_TIMEOUT = 5.0
# Seconds that a connect has, however few are left.
_LEAST_CONNECT_TIMEOUT = 1.0


class RawConnection(DeadlineConnection):
    """A physical connection, with what is known of its server and its session."""

    #: The server's own identity: the system identifier of its cluster and the oid of the database, which no rename
    #: changes.
    identity = ""
    #: The timeline that the server writes; empty on a standby.
    timeline = ""
    #: The role that it logged in as, by its oid: no SET ROLE and no rename changes that.
    role = ""
    #: The identity of the table of marks that was met over it.
    marks_identity = ""
    #: True once SET or the like has outlived a statement: `reset` restores the session.
    changed = False
    #: True once the user may have prepared statements in SQL.
    prepared = False
    #: What the tags of all that was executed since a transaction took it show: a write, or what may be one; a NOTIFY.
    wrote = False
    notified = False


class PsycopgDriver:
    """PostgreSQL over psycopg 3. Thread-safe; a raw connection has one user at a time."""

    module: Any = psycopg
    dialect: Dialect = PostgreSQLDialect()
    marks: Marks = PostgreSQLMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        self._always_reset = settings.pool_reset == "always"
        self.roles = _configured_roles(settings)

    def connect(self, timeout: float | None = None) -> RawConnection:
        options = self._settings.connect_options(self._recovery)
        if "autocommit" in options:
            raise ConfigurationError(
                f"datasource {self._settings.name}: driver.autocommit is not for you to set: leave it out, "
                "and set autocommit on a connection that is in no transaction"
            )
        if "prepare_threshold" in options:
            text = str(options["prepare_threshold"])
            options["prepare_threshold"] = (
                None if text.lower() == "none" else self._whole_number("prepare_threshold", text)
            )
        if "connect_timeout" in options:
            options["connect_timeout"] = self._whole_number("connect_timeout", str(options["connect_timeout"]))
        until = deadline_after(None if timeout is None else max(timeout, _LEAST_CONNECT_TIMEOUT))
        with translated():
            raw = without_secrets(
                lambda: RawConnection.connect_until(self._settings.url, until, **options),
                f"datasource {self._settings.name}",
                self._settings.secrets,
            )
            try:
                raw.identity, raw.timeline, raw.role = identify(Session(raw), until)
            except BaseException:
                raw.close()
                raise
        return raw

    def _whole_number(self, option: str, text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", text):  # not shown: it may be a reference's, and that a secret
            also = ", or none" if option == "prepare_threshold" else ""
            raise ConfigurationError(
                f"datasource {self._settings.name}: driver.{option} is no whole number: write one{also}"
            )
        return int(text)

    def execute(self, raw: RawConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return psycopg.Cursor(raw).execute(statement, parameters or None)

    def is_open(self, raw: RawConnection) -> bool:
        return not raw.closed

    def is_clean(self, raw: RawConnection) -> bool:
        # A lost or closed connection has another transaction status, too.
        return (
            raw.pgconn.transaction_status == IDLE
            and not raw.changed
            and not raw.autocommit
            and raw.row_factory is tuple_row
            and raw.isolation_level is None
            and raw.read_only is None
            and raw.deferrable is None
            and raw.pgconn.pipeline_status == 0
        )

    def reset(self, raw: RawConnection, timeout: float | None = None) -> None:
        until = deadline_after(timeout)
        if raw.pgconn.pipeline_status != 0:
            raise OperationalError(f"datasource {self._settings.name}: a connection was left in pipeline mode")
        with translated():
            roll_back(raw, until)
            if raw.changed or self._always_reset:
                Session(raw).run(
                    _RESET_SESSION + _DEALLOCATE if raw.prepared or self._always_reset else _RESET_SESSION, until
                )
                raw.changed = raw.prepared = False
            raw.autocommit = False
            raw.isolation_level = raw.read_only = raw.deferrable = None
            raw.row_factory = tuple_row
            raw.cursor_factory = psycopg.Cursor

    def ping(self, raw: RawConnection, timeout: float | None = None) -> None:
        with translated():
            check_alive(raw, timeout)

    def close(self, raw: RawConnection) -> None:
        raw.close()

    def cancel(self, raw: RawConnection, timeout: float | None = None) -> None:
        # Whoever waits for the statement sees what becomes of it.
        with contextlib.suppress(Exception):
            raw.cancel_safe(timeout=_CANCEL_TIMEOUT if timeout is None else timeout)

    def begin(self, raw: RawConnection, label: str = "") -> None:
        """As the protocol says; psycopg begins by itself."""
        if label and raw.pgconn.transaction_status == IDLE:
            # Not set_config(), whose snapshot would come before the user's own SET TRANSACTION.
            raw.execute(sql.SQL("set local application_name = {}").format(label))

    def reached_server(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) is not None

    def ended_by(self, raw: RawConnection, raw_cursor: psycopg.Cursor[Any]) -> str | None:
        """As the protocol says; called after any statement, it also notes that the session was changed.

        A statement that failed in a session that is idle now has come behind the user's own COMMIT or ROLLBACK. Its
        tags are unknown, so that is taken for a `commit`: what may be committed is never reported as rolled back.
        """
        results = results_of(raw_cursor)
        status = raw.pgconn.transaction_status
        if len(results) == 1 and status == INTRANS:
            tag = _tag(results[0])
            if tag not in _NOTED:
                if not raw.wrote:
                    raw.wrote = tag is None or not tag.startswith(_READING)
                return None
        tags = [_tag(result) for result in results] or [tag_of(raw_cursor)]
        if not _CHANGING.isdisjoint(tags) or (isinstance(raw_cursor, psycopg.ServerCursor) and raw_cursor.withhold):
            raw.changed = True
            raw.prepared = raw.prepared or not _PREPARING.isdisjoint(tags)
        elif tags == [None] and status != INERROR:
            # It has failed behind the user's own COMMIT, or its answer is still to come, in a pipeline.
            raw.changed = raw.prepared = True
        raw.notified = raw.notified or b"NOTIFY" in tags
        raw.wrote = raw.wrote or not (
            isinstance(raw_cursor, psycopg.ServerCursor) or all(tag and tag.startswith(_READING) for tag in tags)
        )
        if not _ENDING.isdisjoint(tags):
            return "commit"
        if b"ROLLBACK" not in tags:
            return "commit" if status == IDLE else None
        behind = tags[tags.index(b"ROLLBACK") + 1 :]
        if status == IDLE:
            # Statements behind a ROLLBACK in one message were committed with its end.
            return "rollback" if not any(behind) else "commit"
        # Still in a transaction: it went back to a savepoint, or began anew.
        return "rollback" if not _BEGINNING.isdisjoint(behind) or _CHAINED.search(sent_by(raw_cursor)) else None


def _tag(result: PGresult) -> bytes | None:
    tag = result.command_status
    return _SELECT_INTO if result.status == COMMAND_OK and tag and tag.startswith(b"SELECT") else tag


def configured_user(settings: DataSourceSettings) -> str:
    """Whom sessions of these settings log in as, by their keys, the url or PGUSER; empty where none says."""
    user: object = settings.user or settings.driver_options.get("user")
    if not user:
        with contextlib.suppress(psycopg.Error):  # who connects is told what is wrong with the url
            user = conninfo.conninfo_to_dict(settings.url).get("user")
    return str(user or os.environ.get("PGUSER") or "")


def _configured_roles(settings: DataSourceSettings) -> tuple[str, ...]:
    named = configured_user(settings), settings.recovery_user, *settings.prepared_owners
    return tuple(role for role in named if role)


class ServerIdentity(NamedTuple):
    """What a session knows of where it is, and as whom."""

    identity: str
    timeline: str
    role: str


def identify(session: Session, until: float | None = None) -> ServerIdentity:
    """The server's identity and timeline, empty where it does not let this role see them, and the login role."""
    system = "(select system_identifier::text from pg_control_system())"
    session.send(f"select {_ROLE}; select {system} || '/' || {_DATABASE}; select {_TIMELINE}")
    role, *found = session.receive(until)
    error = failure([role, *found])
    if error is not None and not isinstance(error, psycopg.errors.InsufficientPrivilege):
        raise error
    identity, timeline = (value(each) or "" for each in found) if error is None else ("", "")
    return ServerIdentity(identity, timeline, value(role) or "")
