"""The driver psycopg 3."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo
from psycopg.rows import tuple_row

from txpool import loops
from txpool.config.secrets import without_secrets
from txpool.config.settings.login import login_of
from txpool.dbapi.types import add_driver
from txpool.errors import ConfigurationError, OperationalError, translated
from txpool.resources.base import PrepareLocation
from txpool.resources.deadlines import in_step, within_step_timeout
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.marks import Marks
from txpool.resources.marked.branch_rows import rows_of
from txpool.resources.postgresql.dialect import PostgreSQLDialect
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.characteristics import begin_as, level_of
from txpool.resources.postgresql.session.connection import check_alive, deadline_after, roll_back
from txpool.resources.postgresql.session.first_statement import execute_first
from txpool.resources.postgresql.session.identity import identify
from txpool.resources.postgresql.session.initial_sql import begin_session, reset_session
from txpool.resources.postgresql.session.libpq import (
    ACTIVE,
    IDLE,
    INERROR,
    OPEN,
    shown,
)
from txpool.resources.postgresql.session.psycopg_private import BACKLOG, CANCEL_TIMEOUT, TWO_PHASE, sent_by
from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection
from txpool.resources.postgresql.session.stepped import SteppedConnection
from txpool.resources.postgresql.statements.command_tags import ended_by
from txpool.resources.postgresql.tables.marks import PostgreSQLMarks
from txpool.sql.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

_IN_FAILED_TRANSACTION = "25P02"
# All of DISCARD ALL but the prepared statements: psycopg needs its own, which are not from SQL.
_RESET_SESSION = qualified(
    "set session authorization default; reset all; close all; unlisten *; discard temp; discard sequences; "
    "select pg_advisory_unlock_all()"
)
_DEALLOCATE = (
    "; do $$ declare it pg_catalog.record; begin for it in select name from pg_catalog.pg_prepared_statements where "
    "from_sql loop execute pg_catalog.format('deallocate %I', it.name); end loop; end $$"
)
# Seconds that a connect has at least, however short its timeout.
_LEAST_CONNECT_TIMEOUT = 1.0


add_driver(psycopg)


class PsycopgDriver:
    """PostgreSQL over psycopg 3. Thread-safe; a raw connection has one user at a time."""

    module: Any = psycopg
    dialect: Dialect = PostgreSQLDialect()
    marks: Marks = PostgreSQLMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        #: The table of its branches' rows, and what deletes them; None if its branches write none.
        self.rows, self.rows_queue = rows_of(settings, self)
        #: Over how many connections it ends branches that other processes have prepared, at most.
        self.phase_two_connections = settings.xa_phase_two_connections
        self._always_reset = settings.pool_reset == "always"
        #: Recovery begins as it must.
        self._characteristics = UNSPECIFIED if recovery else settings.characteristics
        self._level = level_of(self._characteristics)
        self.roles = _configured_roles(settings)

    def connect(self, timeout: float | None = None) -> PsycopgRawConnection:
        if loops.used and (call := loops.current()) is not None:  # names are looked up, and passwords hashed
            return call.in_thread(self.connect, timeout)
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
        timeout = within_step_timeout(timeout)
        until = deadline_after(None if timeout is None else max(timeout, _LEAST_CONNECT_TIMEOUT))
        kind = SteppedConnection if in_step() else PsycopgRawConnection
        with translated():
            raw = without_secrets(
                lambda: kind.connect_until(self._settings.url, until, **options),
                f"datasource {self._settings.name}",
                self._settings.secrets,
            )
            try:
                raw.identity, raw.timeline, raw.role, pid = identify(raw.session, until)
                raw.behind_pooler = pid != raw.pgconn.backend_pid
                file = self._settings.file
                login = "" if file else self._login_of(raw.pgconn)
                raw.location = PrepareLocation(self._settings.name, raw.identity, raw.role, file, login)
                self._begin_session(raw)
                raw.note_reported()
            except BaseException:
                raw.close()
                raise
        return raw

    def _login_of(self, pgconn: Any) -> str:
        """The login for the log's note, by what libpq has made of the url and of its environment."""
        settings = self._settings
        supplied = settings.issuer is not None  # maybe with a user for this connection only
        return login_of(
            settings,
            "postgresql://",
            user=configured_user(settings) if supplied else pgconn.user.decode(errors="replace"),
            host=pgconn.host.decode(errors="replace"),
            port=int(pgconn.port),
            database=pgconn.db.decode(errors="replace"),
        )

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
            and raw.is_as_reported()
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
            if raw.changed or self._always_reset or not raw.is_as_reported():
                reset = _RESET_SESSION + _DEALLOCATE if raw.prepared or self._always_reset else _RESET_SESSION
                reset_session(raw, reset, until)
                raw.changed = raw.prepared = False
                raw.note_reported()
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
            raw.note_reported()

    def ping(self, raw: PsycopgRawConnection, timeout: float | None = None) -> None:
        with translated():
            check_alive(raw, timeout)

    def close(self, raw: PsycopgRawConnection) -> None:
        raw.close()

    def cancel(self, raw: PsycopgRawConnection, timeout: float | None = None) -> None:
        # The thread that waits for the statement gets its error.
        with contextlib.suppress(Exception):
            raw.cancel_safe(timeout=CANCEL_TIMEOUT if timeout is None else timeout)

    def hang_up(self, raw: PsycopgRawConnection) -> None:
        raw.hang_up()

    def begin(self, raw: PsycopgRawConnection, label: str = "") -> bool:
        """As `Driver.begin`: psycopg, which would begin with the statement, finds it begun."""
        if raw.pgconn.transaction_status == IDLE:
            message = raw.begin_message()
            raw.begun = ()
            if label:
                # Not set_config(), whose snapshot would come before the user's own SET TRANSACTION.
                message += f"; set local application_name = {raw.session.quoted(label)}"
            raw.session.run(message)
        return True

    execute_first = staticmethod(execute_first)

    def reached_server(self, error: BaseException) -> bool:
        return False  # it is asked only if no transaction has begun: then none has ended

    def note_failure(
        self, raw: PsycopgRawConnection, raw_cursor: psycopg.Cursor[Any] | None, error: BaseException
    ) -> None:
        state = getattr(error, "sqlstate", None)
        # Statements after the first that failed are refused for that reason, and say nothing of it.
        if state is not None and state != _IN_FAILED_TRANSACTION and raw.pgconn.transaction_status == INERROR:
            reason = str(error).partition("\n")[0]
            sent = b"" if raw_cursor is None else sent_by(raw_cursor)
            raw.failure = f"{reason}; it was {shown(sent)}" if sent else reason

    ended_by = staticmethod(ended_by)


def configured_user(settings: DataSourceSettings) -> str:
    """The login role of the datasource's sessions, by its keys, the url or PGUSER; empty if none of them has it."""
    user: object = settings.user or settings.driver_options.get("user")
    if not user:
        with contextlib.suppress(psycopg.Error):  # connecting raises the error in the url
            user = conninfo.conninfo_to_dict(settings.url).get("user")
    return str(user or os.environ.get("PGUSER") or "")


def _configured_roles(settings: DataSourceSettings) -> tuple[str, ...]:
    named = configured_user(settings), settings.recovery_user, *settings.prepared_owners
    return tuple(role for role in named if role)
