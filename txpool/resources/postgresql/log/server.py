"""The decision log in a PostgreSQL database.

PostgreSQL shows no commit before it is on disk, and also writes an update that changes nothing. An incarnation's lease
is an advisory lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import time
from typing import Any, Final, LiteralString

import psycopg
from psycopg import conninfo

from txpool.config.secrets import without_secrets
from txpool.errors import ConfigurationError, LogError
from txpool.findings.finding import Finding
from txpool.log.sql.server import LogServer, Parameters
from txpool.log.sql.statements import TABLES, Script
from txpool.resources.postgresql.log.statements import RECORD, STATEMENTS
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.connection import DeadlineConnection, check_alive, deadline_after, roll_back
from txpool.resources.postgresql.session.identity import identify
from txpool.resources.postgresql.session.libpq import bounded, ends_session
from txpool.resources.postgresql.tables.trust import message_of, relation_faults

# In the collation "C", since an upgrade of the system's collations would leave other indexes in a wrong order.
_SCHEMA = """
CREATE TABLE txpool_meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE txpool_incarnations (name text COLLATE "C" PRIMARY KEY, node text NOT NULL, lease bigint NOT NULL,
    fenced integer NOT NULL DEFAULT 0);
CREATE TABLE txpool_decisions (gtrid text COLLATE "C" PRIMARY KEY, branches text, made double precision NOT NULL);
CREATE TABLE txpool_finished (gtrid text COLLATE "C" PRIMARY KEY);
CREATE TABLE txpool_pointers (gtrid text COLLATE "C" PRIMARY KEY, datasource text NOT NULL);
CREATE TABLE txpool_heuristics (gtrid text COLLATE "C", bqual text COLLATE "C", datasource text NOT NULL,
    decided text NOT NULL, ended text NOT NULL, noted double precision NOT NULL, PRIMARY KEY (gtrid, bqual));
"""
# Tables that later versions added: a log without them gets them from `txpool-recovery init`.
_ADDED = """
CREATE TABLE txpool_expired (name text COLLATE "C" PRIMARY KEY, node text NOT NULL, lease bigint NOT NULL,
    since double precision NOT NULL);
CREATE TABLE txpool_memos (kind text COLLATE "C", name text COLLATE "C", text text NOT NULL,
    made double precision NOT NULL, PRIMARY KEY (kind, name));
"""
# The errors of CREATE if another process creates the tables at the same time.
_CREATED_MEANWHILE = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation)
# The other word that leaves out standbys, and the only one before libpq 14, leaves out a server as well whose sessions
# only read by default.
_PRIMARY: Final = "primary" if psycopg.pq.version() >= 140000 else "read-write"
# The options of libpq unless the url sets them. The server must not be a standby, which could write no log. The times
# are seconds, the last one milliseconds; they bound the wait for a server whose host has vanished.
_OPTIONS: Final = {
    "target_session_attrs": _PRIMARY,
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# The settings that each session needs, whatever the role or the database has configured. A statement timeout could end
# the wait for synchronous standbys, and report a success that they have not confirmed.
_SESSION: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
}
# The keep-alives that the server uses, too, to notice that a client's host has vanished, and to free its lease.
_KEEPALIVES: Final = ("keepalives_idle", "keepalives_interval", "keepalives_count")
# Settings that the server's version does not know are left out; remote_apply is left, since it is stronger than `on`.
_CONFIGURE = qualified(
    f"""SELECT set_config(wanted.name, value, false) FROM pg_settings
    JOIN (VALUES ('lock_timeout', %s), {", ".join(f"('tcp_{name}', %s)" for name in _KEEPALIVES)},
    {", ".join(map(str, _SESSION.items()))}) AS wanted (name, value)
    ON pg_settings.name = wanted.name WHERE setting <> 'remote_apply'"""
)
# The tables of these names, and where those would be created that are missing: in the first schema of the path.
_LOOK_UP: Final = qualified(
    """SELECT given, CASE WHEN n.nspname IS NOT NULL OR current_schema() IS NOT NULL
            THEN format('%%I.%%I', coalesce(n.nspname, current_schema()), given) ELSE given END
    FROM unnest(%s::text[]) given LEFT JOIN pg_class c ON c.oid = to_regclass(given)
        LEFT JOIN pg_namespace n ON n.oid = c.relnamespace"""
)
_IS_THERE: Final = qualified("SELECT to_regclass(%s) IS NOT NULL")
_TAKE: Final = qualified("SELECT pg_try_advisory_lock(%s)")
_RELEASE_LEASES: Final = qualified("SELECT pg_advisory_unlock_all()")


class LogConnection(DeadlineConnection):
    """A connection whose steps time out at `until`, by the monotonic clock, if that is set."""

    until: float | None = None
    #: The session has prepared the statement that records a decision.
    recording = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The log's tables with their schemas, looked up once: what is made later in a schema of the search path
        #: changes nothing.
        self.tables: dict[str, str] = {}
        self._spelled: dict[LiteralString, LiteralString] = {}

    def spelled(self, statement: LiteralString) -> LiteralString:
        """A statement of the log's with the schema of each name."""
        found = self._spelled.get(statement)
        if found is None:
            found = self._spelled[statement] = qualified(statement, self.tables)
        return found

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(bounded(gen, self.until), *args, **options)


class PostgreSQLLogServer(LogServer):
    """A log's server over psycopg."""

    statements = STATEMENTS
    errors = (psycopg.Error,)
    place = "on the search path"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        try:
            self._given = conninfo.conninfo_to_dict(self.url)
        except psycopg.Error as error:
            problem = self.describe(error)
        else:
            return
        raise ConfigurationError(f"log.url = {self.url}: {problem}")

    def open_raw(self, application: str, timeout: float | None) -> LogConnection:
        until = deadline_after(timeout)
        options: dict[str, Any] = _OPTIONS | {"application_name": application} | self._given
        if self._user is not None:
            options["user"] = self._user
        if self._password is not None:
            options["password"] = self._password.reveal()
        raw = without_secrets(
            lambda: LogConnection.connect_until("", until, autocommit=True, **options), self.name, [self._password]
        )
        raw.until = until
        try:
            raw.execute(_CONFIGURE, [f"{self._lock_timeout * 1000:.0f}", *(options[name] for name in _KEEPALIVES)])
        except BaseException:
            raw.close()
            raise
        return raw

    def opened(self, raw: LogConnection) -> LogConnection:
        raw.until = None
        return raw

    def is_clean(self, raw: LogConnection) -> bool:
        return raw.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def reset(self, raw: LogConnection, timeout: float | None = None) -> None:
        roll_back(raw, deadline_after(timeout))

    def ping(self, raw: LogConnection, timeout: float | None = None) -> None:
        check_alive(raw, timeout)

    def close(self, raw: LogConnection) -> None:
        raw.close()

    def disown(self, raw: LogConnection) -> None:
        # The descriptor becomes one of /dev/null, so that libpq never uses a file that gets the same number.
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, raw.pgconn.socket, inheritable=False)
        os.close(null)

    def run(self, raw: LogConnection, script: Script, parameters: Parameters) -> list[tuple[Any, ...]]:
        (statement,) = script
        cursor = raw.execute(raw.spelled(statement), parameters)
        return cursor.fetchall() if cursor.description else []

    def execute(
        self, raw: LogConnection, script: Script, parameters: Parameters | None = None
    ) -> list[tuple[Any, ...]]:
        return self.run(raw, script, parameters or {})

    def transaction(self, raw: LogConnection) -> AbstractContextManager[object]:
        return raw.transaction()

    @contextmanager
    def holding_registry(self, raw: LogConnection) -> Iterator[None]:
        with raw.transaction():
            raw.execute(raw.spelled("LOCK TABLE txpool_incarnations"))
            yield

    def insert(self, raw: LogConnection, gtrid: str, incarnation: str, branches: str) -> bool:
        if not raw.recording:
            raw.session.run(f"PREPARE txpool_record AS {raw.spelled(RECORD)}")
            raw.recording = True
        result = raw.session.run_prepared("txpool_record", gtrid, branches, str(time()), incarnation)
        return result.command_tuples == 1

    def is_definite(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and not ends_session(error)

    def take_lease(self, raw: LogConnection, incarnation: str) -> dict[str, object] | None:
        key = key_of(incarnation)
        (taken,) = raw.execute(_TAKE, [key]).fetchone() or (False,)
        return {"lease": key} if taken else None

    def release_lease(self, raw: LogConnection) -> None:
        raw.execute(_RELEASE_LEASES)

    def create(self) -> bool:
        with self.open_raw("txpool log", None) as raw:
            server = self.identity(raw)
            try:
                return self._make(raw, server)
            except _CREATED_MEANWHILE:
                return self._make(raw, server)

    def _make(self, raw: LogConnection, server: str) -> bool:
        with raw.transaction():
            created = not self.exists(raw)
            if created:
                raw.execute(raw.spelled(_SCHEMA))
                self.require_ours(raw)
                self.set_meta(raw, self.new_meta(server))
            self.require_ours(raw)
            self._meta(raw)
            self.add_tables(raw)
            self.require_ours(raw)
        return created

    def exists(self, raw: LogConnection) -> bool:
        if not raw.tables:
            raw.tables = dict(raw.execute(_LOOK_UP, [[*TABLES]]).fetchall())
        return _is_there(raw, "txpool_meta")

    def has_added_tables(self, raw: LogConnection) -> bool:
        return _is_there(raw, "txpool_memos")

    def add_tables(self, raw: LogConnection) -> None:
        if not self.has_added_tables(raw):
            raw.execute(raw.spelled(_ADDED))

    def require_ours(self, raw: LogConnection) -> None:
        """LogError if a table belongs to a foreign role, or a foreign role's trigger, rule or the like is on it."""
        faults = relation_faults(raw, [*raw.tables.values()])
        if faults:
            raise LogError(f"{self.name}: {message_of(faults[0])}")

    def identity(self, raw: LogConnection) -> str:
        return identify(raw.session, raw.until).identity

    def findings(self) -> Iterator[Finding]:
        from txpool.resources.postgresql.log.check import findings

        return findings(self)


def key_of(incarnation: str) -> int:
    """The key of an incarnation's advisory lock: its twelve characters are digits of base 36, and fit into a bigint."""
    return int(incarnation, 36)


def _is_there(raw: LogConnection, name: str) -> bool:
    (found,) = raw.execute(_IS_THERE, [raw.tables[name]]).fetchone() or (False,)
    return bool(found)
