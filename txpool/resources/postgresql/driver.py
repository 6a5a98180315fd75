"""The driver psycopg 3."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import conninfo
from psycopg.rows import tuple_row

from txpool.characteristics import UNSPECIFIED
from txpool.config.secrets import without_secrets
from txpool.dbapi.types import add_driver
from txpool.errors import ConfigurationError, OperationalError, translated
from txpool.resources.base import PrepareLocation
from txpool.resources.branch_rows import rows_of
from txpool.resources.dialect import Dialect
from txpool.resources.marks import Marks
from txpool.resources.postgresql.characteristics import begin_as, beginning_of, level_of
from txpool.resources.postgresql.connection import check_alive, deadline_after, roll_back
from txpool.resources.postgresql.dialect import PostgreSQLDialect
from txpool.resources.postgresql.first_statement import execute_first
from txpool.resources.postgresql.initial_sql import begin_session, reset_session
from txpool.resources.postgresql.libpq import (
    ACTIVE,
    COMMAND_OK,
    IDLE,
    INERROR,
    INTRANS,
    OPEN,
    Session,
    failure,
    shown,
    value,
)
from txpool.resources.postgresql.marks import PostgreSQLMarks
from txpool.resources.postgresql.psycopg_private import BACKLOG, CANCEL_TIMEOUT, TWO_PHASE, executed_by, sent_by, tag_of
from txpool.resources.postgresql.session import outlives_transaction, text_of
from txpool.resources.postgresql.spare_cursor import SparingConnection

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from txpool.config.settings import DataSourceSettings

# Command tags. After these, the session's transaction, or the session itself, has changed.
_BEGINNING = frozenset({b"BEGIN", b"START TRANSACTION"})
_ENDING = frozenset({b"COMMIT", b"PREPARE TRANSACTION"})
# These may have created temporary objects or prepared statements: EXPLAIN ANALYZE, too. DO and CALL may do anything.
_PREPARING = frozenset({b"PREPARE", b"DO", b"CALL"})
_KINDS = b"TABLE,TABLE AS,VIEW,SEQUENCE,FUNCTION,PROCEDURE,AGGREGATE,TYPE,DOMAIN,OPERATOR,COLLATION,FOREIGN TABLE"
_MAKING = frozenset(b"CREATE " + kind for kind in _KINDS.split(b","))
_SELECT_INTO = b"SELECT INTO"  # not a tag of the server's, which answers SELECT INTO as any other SELECT
_CHANGING = frozenset({b"SET", b"LISTEN", b"DECLARE CURSOR", b"EXPLAIN", _SELECT_INTO, *_MAKING, *_PREPARING})
# These may have undone what pool.initial-sql has done.
_DISCARDS = frozenset(b"DISCARD " + kind for kind in (b"ALL", b"PLANS", b"SEQUENCES", b"TEMP"))
_UNDOING = frozenset({b"RESET", b"UNLISTEN", b"DEALLOCATE", b"DEALLOCATE ALL", b"DROP TABLE", *_DISCARDS})
# Empty is the tag of a ServerCursor.
_NOTED = frozenset({*_BEGINNING, *_ENDING, *_CHANGING, *_UNDOING, b"ROLLBACK", b"NOTIFY", b""})
# The beginnings of tags that show no write, though a SELECT's function may have written: then the server is asked.
_READING = (b"SELECT", b"FETCH", b"SHOW", b"EXPLAIN", b"SET", b"SAVEPOINT", b"RELEASE", b"ROLLBACK", b"NOTIFY")
# The first six bytes of the most usual tags, which show a write and nothing else.
_WRITING = frozenset({b"INSERT", b"UPDATE", b"DELETE"})
_IN_FAILED_TRANSACTION = "25P02"
_CHAINED = re.compile(r"\band\s+chain\b", re.IGNORECASE)

# All of DISCARD ALL but the prepared statements: psycopg needs its own, which are not from SQL.
_RESET_SESSION = (
    "set session authorization default; reset all; close all; unlisten *; discard temp; discard sequences; "
    "select pg_advisory_unlock_all()"
)
_DEALLOCATE = (
    "; do $$ declare it record; begin for it in select name from pg_prepared_statements where from_sql "
    "loop execute format('deallocate %I', it.name); end loop; end $$"
)
# Every session runs these first. All arguments have exactly the right types: PostgreSQL would prefer a function in a
# schema of the search path that fits better than pg_catalog's, and another role may have created it there.
# The timeline belongs to a transaction's id: after a failover that lost transactions, their ids are used again.
TIMELINE = "case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end"
ROLE = "to_regrole(quote_ident(session_user::text))::oid"
SYSTEM = "(select system_identifier::text from pg_control_system())"
DATABASE = "(select oid::text from pg_database where datname = current_database())"
# Seconds that a connect has at least, however short its timeout.
_LEAST_CONNECT_TIMEOUT = 1.0


add_driver(psycopg)


class PsycopgRawConnection(SparingConnection):
    """A physical connection, and the state of its session."""

    #: The database's identity: the system identifier of the cluster and the oid of the database, which no rename
    #: changes.
    identity = ""
    #: The server's timeline; empty on a standby.
    timeline = ""
    #: The oid of the login role, which no SET ROLE and no rename changes.
    role = ""
    #: What the log notes before a branch prepares over it.
    location: PrepareLocation
    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: Why the statement failed that aborted the transaction last, and which it was.
    failure = ""
    #: True once SET or the like may have changed the session: `reset` restores it.
    changed = False
    #: True once the user may have prepared statements in SQL.
    prepared = False
    #: The SQL that the session began with, and that `reset` runs again.
    initial_sql = ""
    #: By the command tags since `watch_commands`: whether anything may have been written, and whether NOTIFY was sent.
    wrote = False
    notified = False
    #: tpc_prepare() has failed: the transaction was rolled back, and tpc_rollback() has nothing to do.
    not_prepared = False
    #: PREPARE TRANSACTION of tpc_prepare() may have been sent, and its answer has not come.
    unanswered = False
    #: How its transactions begin by the datasource's settings.
    configured = UNSPECIFIED
    #: How its transactions begin may be another way by now.
    begins_otherwise = False
    #: The statement that begins a transaction, with what is set on the connection; empty until it is made.
    beginning = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Each transaction reads these, and Python 3.11 reads slowly what only the class has.
        self.inherited = self.changed = self.begins_otherwise = False

    def begin_message(self) -> str:
        """The BEGIN of the next transaction."""
        if not self.beginning:
            self.beginning = beginning_of(self)
        return self.beginning

    def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_isolation_level(value)

    def set_read_only(self, value: bool | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_read_only(value)

    def set_deferrable(self, value: bool | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_deferrable(value)

    def set_autocommit(self, value: bool) -> None:
        """As psycopg's. Without a BEGIN of psycopg's, the session itself must have what is configured."""
        self.begins_otherwise = True
        super().set_autocommit(value)
        parts = []
        if value and self.configured.isolation is not None and self.isolation_level is not None:
            parts.append(f"isolation level {self.isolation_level.name.replace('_', ' ')}")
        if value and self.configured.read_only and self.read_only:
            parts.append("read only")
        if parts:
            self.changed = True
            psycopg.Cursor(self).execute(f"set session characteristics as transaction {', '.join(parts)}".encode())


class PsycopgDriver:
    """PostgreSQL over psycopg 3. Thread-safe; a raw connection has one user at a time."""

    module: Any = psycopg
    dialect: Dialect = PostgreSQLDialect()
    marks: Marks = PostgreSQLMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        #: The table of its branches' rows, and what deletes them; None where its branches write none.
        self.rows, self.rows_queue = rows_of(settings, self)
        self._always_reset = settings.pool_reset == "always"
        #: Recovery begins as it must.
        self._characteristics = UNSPECIFIED if recovery else settings.characteristics
        self._level = level_of(self._characteristics)
        self.roles = _configured_roles(settings)

    def connect(self, timeout: float | None = None) -> PsycopgRawConnection:
        options = self._settings.connect_options(self._recovery)
        if "autocommit" in options:
            raise ConfigurationError(
                f"datasource {self._settings.name}: driver.autocommit cannot be set in a datasource's settings: leave "
                "it out, and set autocommit on a connection that is in no transaction"
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
                lambda: PsycopgRawConnection.connect_until(self._settings.url, until, **options),
                f"datasource {self._settings.name}",
                self._settings.secrets,
            )
            try:
                raw.identity, raw.timeline, raw.role = identify(raw.session, until)
                raw.location = PrepareLocation(self._settings.name, raw.identity, raw.role, self._settings.file)
                self._begin_session(raw)
            except BaseException:
                raw.close()
                raise
        return raw

    def _begin_session(self, raw: PsycopgRawConnection) -> None:
        raw.configured = self._characteristics
        if self._characteristics.specified:
            begin_as(raw, self._characteristics)
            raw.begins_otherwise = False

    def _whole_number(self, option: str, text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", text):  # the text is not shown: a reference may be a secret
            also = ", or none" if option == "prepare_threshold" else ""
            raise ConfigurationError(
                f"datasource {self._settings.name}: driver.{option} is no whole number: write one{also}"
            )
        return int(text)

    def execute(self, raw: PsycopgRawConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return psycopg.Cursor(raw).execute(statement, parameters or None)

    def is_open(self, raw: PsycopgRawConnection) -> bool:
        return raw.pgconn.status == OPEN and not raw.inherited

    def is_clean(self, raw: PsycopgRawConnection) -> bool:
        # A lost or closed connection has another transaction status, too.
        pgconn = raw.pgconn
        return (
            pgconn.transaction_status == IDLE
            and not raw.changed
            and raw.row_factory is tuple_row
            and (not raw.begins_otherwise or self._begins_as_configured(raw))
            and pgconn.pipeline_status == 0
        )

    def _begins_as_configured(self, raw: PsycopgRawConnection) -> bool:
        return (
            not raw.autocommit
            and raw.isolation_level is self._level
            and raw.read_only is self._characteristics.read_only
            and raw.deferrable is None
        )

    def reset(self, raw: PsycopgRawConnection, timeout: float | None = None) -> None:
        until = deadline_after(timeout)
        if raw.pgconn.pipeline_status != 0:
            raise OperationalError(f"datasource {self._settings.name}: a connection was left in pipeline mode")
        if raw.pgconn.transaction_status == ACTIVE or raw.lock.locked():
            # Its rollback would wait for the statement, or for a generator or a block that nobody goes on with.
            raise OperationalError(f"datasource {self._settings.name}: a connection was left while it executed")
        with translated():
            # What was begun rolls back; what is prepared is no part of the session any more.
            setattr(raw, TWO_PHASE, None)
            raw.not_prepared = raw.unanswered = False
            roll_back(raw, until)
            if raw.changed or self._always_reset:
                reset = _RESET_SESSION + _DEALLOCATE if raw.prepared or self._always_reset else _RESET_SESSION
                reset_session(raw, reset, until)
                raw.changed = raw.prepared = False
                while raw.pgconn.notifies():  # those that psycopg has not looked for
                    pass
                getattr(raw, BACKLOG).clear()
            raw.autocommit = False
            begin_as(raw, self._characteristics)
            raw.deferrable = None
            raw.begins_otherwise = False
            raw.row_factory = tuple_row
            raw.cursor_factory = psycopg.Cursor

    def start_session(self, raw: PsycopgRawConnection, statement: str, timeout: float | None) -> None:
        """As `SessionStarter.start_session`."""
        with translated():
            begin_session(raw, statement, deadline_after(timeout))

    def ping(self, raw: PsycopgRawConnection, timeout: float | None = None) -> None:
        with translated():
            check_alive(raw, timeout)

    def close(self, raw: PsycopgRawConnection) -> None:
        raw.close()

    def cancel(self, raw: PsycopgRawConnection, timeout: float | None = None) -> None:
        # The thread that waits for the statement gets its error.
        with contextlib.suppress(Exception):
            raw.cancel_safe(timeout=CANCEL_TIMEOUT if timeout is None else timeout)

    def begin(self, raw: PsycopgRawConnection, label: str = "") -> bool:
        """As `Driver.begin`: psycopg, which would begin with the statement, finds it begun."""
        if raw.pgconn.transaction_status == IDLE:
            message = raw.begin_message()
            if label:
                # Not set_config(), whose snapshot would come before the user's own SET TRANSACTION.
                message += f"; set local application_name = {raw.session.quoted(label)}"
            raw.session.run(message)
        return True

    execute_first = staticmethod(execute_first)

    def reached_server(self, error: BaseException) -> bool:
        return False  # it is asked only where no transaction has begun: then none has ended

    def note_failure(
        self, raw: PsycopgRawConnection, raw_cursor: psycopg.Cursor[Any] | None, error: BaseException
    ) -> None:
        state = getattr(error, "sqlstate", None)
        # Statements after the first that failed are refused for that reason, and say nothing of it.
        if state is not None and state != _IN_FAILED_TRANSACTION and raw.pgconn.transaction_status == INERROR:
            reason = str(error).partition("\n")[0]
            sent = b"" if raw_cursor is None else sent_by(raw_cursor)
            raw.failure = f"{reason}; it was {shown(sent)}" if sent else reason

    def ended_by(  # noqa: PLR0911 - each answer where it is known
        self, raw: PsycopgRawConnection, raw_cursor: psycopg.Cursor[Any]
    ) -> str | None:
        """As `Driver.ended_by`; it also notes on the raw connection what the statement has changed.

        If the statement failed and the session is idle now, the user's own COMMIT or ROLLBACK came before it in the
        same message. Its tags are unknown, so this answers `commit`: work that may be committed is never reported as
        rolled back.
        """
        results, sent = executed_by(raw_cursor)
        status = raw.pgconn.transaction_status
        if not results and status == INTRANS and not raw.pgconn.pipeline_status and not sent:
            return None  # it failed before anything was sent
        if not sent or outlives_transaction(sent):
            raw.changed = True
        if len(results) == 1 and status == INTRANS:
            tag = results[0].command_status
            if tag is not None and tag[:6] in _WRITING:
                raw.wrote = True
                return None
            tag = _tag(results[0])
            if tag not in _NOTED:
                raw.wrote = raw.wrote or tag is None or not tag.startswith(_READING)
                return None
        tags = [_tag(result) for result in results] or [tag_of(raw_cursor)]
        if not _CHANGING.isdisjoint(tags) or (isinstance(raw_cursor, psycopg.ServerCursor) and raw_cursor.withhold):
            raw.changed = True
            raw.prepared = raw.prepared or not _PREPARING.isdisjoint(tags)
        elif tags == [None] and status != INERROR:
            # It failed after the user's own COMMIT in the same message, or a pipeline has not received its answer.
            raw.changed = raw.prepared = True
        if raw.initial_sql and not _UNDOING.isdisjoint(tags):
            raw.changed = True
        raw.notified = raw.notified or b"NOTIFY" in tags
        raw.wrote = raw.wrote or not (
            isinstance(raw_cursor, psycopg.ServerCursor) or all(tag and tag.startswith(_READING) for tag in tags)
        )
        if not _ENDING.isdisjoint(tags):
            return "commit"
        if b"ROLLBACK" not in tags:
            return "commit" if status == IDLE else None
        after = tags[tags.index(b"ROLLBACK") + 1 :]
        if status == IDLE:
            # Statements after a ROLLBACK in one message are committed at the message's end.
            return "rollback" if not any(after) else "commit"
        # Still in a transaction: it was a ROLLBACK TO SAVEPOINT, or a new transaction was begun.
        return "rollback" if not _BEGINNING.isdisjoint(after) or _CHAINED.search(text_of(sent)) else None


def _tag(result: PGresult) -> bytes | None:
    tag = result.command_status
    return _SELECT_INTO if result.status == COMMAND_OK and tag and tag.startswith(b"SELECT") else tag


def configured_user(settings: DataSourceSettings) -> str:
    """The login role of the datasource's sessions, by its keys, the url or PGUSER; empty where none of them has it."""
    user: object = settings.user or settings.driver_options.get("user")
    if not user:
        with contextlib.suppress(psycopg.Error):  # connecting raises the error in the url
            user = conninfo.conninfo_to_dict(settings.url).get("user")
    return str(user or os.environ.get("PGUSER") or "")


def _configured_roles(settings: DataSourceSettings) -> tuple[str, ...]:
    named = configured_user(settings), settings.recovery_user, *settings.prepared_owners
    return tuple(role for role in named if role)


class ServerIdentity(NamedTuple):
    """The database's identity, the server's timeline and the session's login role, as in RawConnection."""

    identity: str
    timeline: str
    role: str


def identify(session: Session, until: float | None = None) -> ServerIdentity:
    """Ask the server for its identity; identity and timeline are empty where the role may not read them."""
    session.send(f"select {ROLE}; select {SYSTEM} || '/' || {DATABASE}; select {TIMELINE}")
    role, *found = session.receive(until)
    error = failure([role, *found])
    if error is not None and not isinstance(error, psycopg.errors.InsufficientPrivilege):
        raise error
    identity, timeline = (value(each) or "" for each in found) if error is None else ("", "")
    return ServerIdentity(identity, timeline, value(role) or "")
