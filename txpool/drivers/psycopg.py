"""psycopg 3: PostgreSQL."""

from __future__ import annotations

import contextlib
import re
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, tuple_row

from txpool.drivers.libpq import COMMAND_OK, IDLE, INERROR, INTRANS, Session, value
from txpool.errors import ConfigurationError, OperationalError, translated

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from txpool.settings import DataSourceSettings

# The tags of commands after which the session, or its transaction, is no longer what it was.
_BEGINNING = frozenset({b"BEGIN", b"START TRANSACTION"})
_ENDING = frozenset({b"COMMIT", b"PREPARE TRANSACTION"})
# What a user may have made in the temporary schema, or have kept open, is among these. DO and CALL may do anything.
_PREPARING = frozenset({b"PREPARE", b"DO", b"CALL"})
_MAKING = frozenset(b"CREATE " + kind for kind in (b"TABLE", b"TABLE AS", b"VIEW", b"SEQUENCE", b"FUNCTION", b"TYPE"))
_SELECT_INTO = b"SELECT INTO"  # ours: the server's is that of any other SELECT
_CHANGING = frozenset({b"SET", b"LISTEN", b"DECLARE CURSOR", _SELECT_INTO, *_MAKING, *_PREPARING})
# A cursor of psycopg's on the server shows the tag of none.
_NOTED = frozenset({*_BEGINNING, *_ENDING, *_CHANGING, b"ROLLBACK", b""})
_CHAINED = re.compile(rb"\band\s+chain\b", re.IGNORECASE)

# What DISCARD ALL does, but for the prepared statements: psycopg keeps account of its own, which are not from SQL.
_RESTORE = (
    "set session authorization default; reset all; close all; unlisten *; discard temp; discard sequences; "
    "select pg_advisory_unlock_all()"
)
_DEALLOCATE = (
    "; do $$ declare it record; begin for it in select name from pg_prepared_statements where from_sql "
    "loop execute format('deallocate %I', it.name); end loop; end $$"
)
# The timeline goes with a transaction's id: after a failover that lost some, the ids are given out again.
_TIMELINE = "case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end"
_DATABASE = "(select oid from pg_database where datname = current_database())"
_CANCEL_TIMEOUT = 5.0


class Connection(psycopg.Connection[TupleRow]):
    """A physical connection, with what is known of its server and its session."""

    #: The server's own identity: the system identifier of its cluster and the oid of the database, which no rename
    #: changes.
    identity = ""
    #: The timeline that the server writes; empty on a standby.
    timeline = ""
    #: The identity of the table of marks that was met over it.
    marks = ""
    #: True once SET or the like has outlived a statement: `reset` restores the session.
    changed = False
    #: True once the user may have prepared statements in SQL.
    prepared = False


class PsycopgDriver:
    """PostgreSQL over psycopg 3. Thread-safe; a raw connection has one user at a time."""

    module: Any = psycopg

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        self._always = settings.pool_reset == "always"

    def connect(self, timeout: float | None = None) -> Connection:
        until = None if timeout is None else monotonic() + timeout
        options = self._settings.connect_options(self._recovery)
        if "autocommit" in options:
            raise ConfigurationError(
                f"datasource {self._settings.name}: driver.autocommit is not for you to set: leave it out, "
                "and set autocommit on a connection that is in no transaction"
            )
        if "prepare_threshold" in options:
            options["prepare_threshold"] = _threshold(self._settings.name, str(options["prepare_threshold"]))
        if timeout is not None:
            least = max(timeout, 1.0)  # none left would be a zero, and that is for ever to libpq
            own = int(options.get("connect_timeout", 0))
            options["connect_timeout"] = ceil(min(own, least) if own > 0 else least)
        with translated():
            raw = Connection.connect(self._settings.url, **options)
            try:
                raw.identity, raw.timeline = identify(Session(raw), until)
            except BaseException:
                raw.close()
                raise
        return raw

    def is_open(self, raw: Connection) -> bool:
        return not raw.closed

    def is_clean(self, raw: Connection) -> bool:
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

    def reset(self, raw: Connection) -> None:
        if raw.pgconn.pipeline_status != 0:
            raise OperationalError(f"datasource {self._settings.name}: a connection was left in pipeline mode")
        with translated():
            raw.rollback()
            if raw.changed or self._always:
                Session(raw).run(_RESTORE + _DEALLOCATE if raw.prepared or self._always else _RESTORE)
                raw.changed = raw.prepared = False
            raw.autocommit = False
            raw.isolation_level = raw.read_only = raw.deferrable = None
            raw.row_factory = tuple_row
            raw.cursor_factory = psycopg.Cursor

    def ping(self, raw: Connection) -> None:
        with translated():
            Session(raw).run("")

    def close(self, raw: Connection) -> None:
        raw.close()

    def cancel(self, raw: Connection, timeout: float | None = None) -> None:
        # Whoever waits for the statement sees what becomes of it.
        with contextlib.suppress(Exception):
            raw.cancel_safe(timeout=_CANCEL_TIMEOUT if timeout is None else timeout)

    def begin(self, raw: Connection, label: str = "") -> None:
        """As the protocol says; psycopg begins by itself."""
        if label and raw.pgconn.transaction_status == IDLE:
            # Not set_config(), whose snapshot would come before the user's own SET TRANSACTION.
            raw.execute(sql.SQL("set local application_name = {}").format(label))

    def ended_by(self, raw: Connection, raw_cursor: psycopg.Cursor[Any]) -> str | None:
        """As the protocol says; called after any statement, it also notes that the session was changed.

        A statement that failed in a session that is idle now has come behind the user's own COMMIT or ROLLBACK. Its
        tags are unknown, so that is taken for a `commit`: what may be committed is never reported as rolled back.
        """
        # All results of a message with several statements; psycopg has no public way that leaves the cursor alone.
        results = raw_cursor._results
        status = raw.pgconn.transaction_status
        if len(results) == 1 and status == INTRANS and _tag(results[0]) not in _NOTED:
            return None
        tags = [_tag(result) for result in results] or [raw_cursor._statusmessage]
        if not _CHANGING.isdisjoint(tags) or (isinstance(raw_cursor, psycopg.ServerCursor) and raw_cursor.withhold):
            raw.changed = True
            raw.prepared = raw.prepared or not _PREPARING.isdisjoint(tags)
        elif tags == [None] and status != INERROR:
            # It has failed behind the user's own COMMIT, or its answer is still to come, in a pipeline.
            raw.changed = raw.prepared = True
        if not _ENDING.isdisjoint(tags):
            return "commit"
        if b"ROLLBACK" not in tags:
            return "commit" if status == IDLE else None
        behind = tags[tags.index(b"ROLLBACK") + 1 :]
        if status == IDLE:
            # Statements behind a ROLLBACK in one message were committed with its end.
            return "rollback" if not any(behind) else "commit"
        # Still in a transaction: it went back to a savepoint, or began anew.
        query = raw_cursor._query.query if raw_cursor._query else b""
        return "rollback" if not _BEGINNING.isdisjoint(behind) or _CHAINED.search(query) else None


def _tag(result: PGresult) -> bytes | None:
    tag = result.command_status
    return _SELECT_INTO if result.status == COMMAND_OK and tag and tag.startswith(b"SELECT") else tag


def _threshold(datasource: str, text: str) -> int | None:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"datasource {datasource}: driver.prepare_threshold is {text!r}: write a whole number, or none"
        ) from None


def identify(session: Session, until: float | None = None) -> tuple[str, str]:
    """The server's identity and timeline; empty where the server does not let this role see them."""
    system = "(select system_identifier from pg_control_system())"
    try:
        found, timeline = session.run(f"select {system} || '/' || {_DATABASE}; select {_TIMELINE}", until)
    except psycopg.errors.InsufficientPrivilege:
        return "", ""
    return value(found) or "", value(timeline) or ""
