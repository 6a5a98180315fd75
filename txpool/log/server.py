"""The PostgreSQL database of a sql log: its connections, its tables, and the check that it is the original log.

Every connection is verified when it is opened. A url that leads to another server today, or to a copy, would find no
decision, and so roll back what is committed.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import conninfo

from txpool.config.secrets import ConfiguredValue, Secret, ValueSource, escaped, redact, without_secrets
from txpool.errors import ConfigurationError, LogError
from txpool.log.formats import FORMAT, require
from txpool.log.holders import HELD_LEASES
from txpool.resources.postgresql.connection import DeadlineConnection, check_alive, deadline_after, roll_back
from txpool.resources.postgresql.driver import identify
from txpool.resources.postgresql.libpq import bounded
from txpool.resources.postgresql.trust import message_of, relation_faults

#: Its tables, which are found by the search path.
TABLES: Final = (
    "txpool_meta",
    "txpool_incarnations",
    "txpool_decisions",
    "txpool_finished",
    "txpool_pointers",
    "txpool_heuristics",
    "txpool_expired",
    "txpool_memos",
)
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
# The errors of CREATE where another process creates the tables at the same time.
_CREATED_MEANWHILE = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation)
_IN_USE: Final = f"WITH {HELD_LEASES} SELECT name FROM txpool_incarnations WHERE lease IN (TABLE held)"  # noqa: S608 - a constant
# The options of libpq unless the url sets them. The server must not be a standby, which could write no log. The times
# are seconds, the last one milliseconds; they bound the wait for a server whose host has vanished.
_OPTIONS: Final = {
    "target_session_attrs": "read-write",
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
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
}
# The keep-alives that the server uses, too, to notice that a client's host has vanished, and to free its lease.
_KEEPALIVES: Final = ("keepalives_idle", "keepalives_interval", "keepalives_count")
# Settings that the server's version does not know are left out; remote_apply is left, since it is stronger than `on`.
_CONFIGURE = f"""SELECT set_config(name, value, false) FROM pg_settings
    JOIN (VALUES ('lock_timeout', %s), {", ".join(f"('tcp_{name}', %s)" for name in _KEEPALIVES)},
    {", ".join(map(str, _SESSION.items()))}) AS wanted (name, value)
    USING (name) WHERE setting <> 'remote_apply'"""  # noqa: S608 - constants


class LogConnection(DeadlineConnection):
    """A connection whose steps time out at `until`, by the monotonic clock, where that is set."""

    until: float | None = None
    #: The session has prepared the statement that records a decision.
    recording = False

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(bounded(gen, self.until), *args, **options)


class LogServer:
    """Opens verified connections, in autocommit mode; a Connector for the pool. Thread-safe."""

    def __init__(
        self, url: str, *, user: str | None = None, password: Secret | None = None, lock_timeout: float = 10.0
    ) -> None:
        entry = ConfiguredValue("log.url", escaped(url), "the decision log", Path.cwd(), ValueSource.CODE)
        read = entry.url()
        self._url = read.without
        self._user = user
        self._password = password or (Secret(entry, in_url=True) if read.password is not None else None)
        self._lock_timeout = f"{lock_timeout * 1000:.0f}"  # milliseconds
        #: Its name in errors.
        self.name = f"the decision log {self._url}"
        try:
            self._given = conninfo.conninfo_to_dict(self._url)
        except psycopg.Error as error:
            problem = self.describe(error)
        else:
            return
        raise ConfigurationError(f"log.url = {self._url}: {problem}")

    def connect(self, application: str = "txpool log", *, timeout: float | None = None) -> LogConnection:
        """A verified connection. Errors: LogError where the log is missing or another; psycopg.Error."""
        raw = self._open(application, deadline_after(timeout))
        try:
            self._verify(raw)
        except BaseException:
            raw.close()
            raise
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

    def create(self) -> bool:
        """Create the tables, and return True; False where they exist.

        Of two processes that do so at once, the second waits and finds them.
        """
        with self._open("txpool log") as raw:
            server = _server(raw)
            try:
                return self._make(raw, server)
            except _CREATED_MEANWHILE:
                return self._make(raw, server)

    def _make(self, raw: LogConnection, server: str) -> bool:
        with raw.transaction():
            created = not _has_table(raw, "txpool_meta")
            if created:
                raw.execute(_SCHEMA)
                self._require_ours(raw)
                _set(raw, {"format": FORMAT, "log": secrets.token_hex(16), "server": server})
            self._require_ours(raw)
            self._meta(raw)
            _add_tables(raw)
            self._require_ours(raw)
        return created

    def adopt(self) -> None:
        """Accept a copied or moved log as this server's own; LogError while any incarnation holds its lease.

        The earlier incarnations of all nodes are forgotten, so that recovery leaves their branches alone. Their
        decisions stay for people to read, and so do the location notes.
        """
        with self._open("txpool log") as raw:
            self._require_tables(raw)
            server = _server(raw)
            with raw.transaction():
                raw.execute("LOCK TABLE txpool_incarnations")  # no incarnation is registered meanwhile
                held = raw.execute(_IN_USE).fetchall()
                if held:
                    names = ", ".join(name for (name,) in held)
                    raise LogError(f"{self.name} is in use by incarnation {names}: nothing done")
                self._meta(raw)
                _add_tables(raw)
                raw.execute("DELETE FROM txpool_incarnations")
                raw.execute("DELETE FROM txpool_memos WHERE kind = 'incarnation'")
                raw.execute("DELETE FROM txpool_expired")
                raw.execute("DELETE FROM txpool_finished")
                _set(raw, {"log": secrets.token_hex(16), "server": server})

    def describe(self, error: BaseException) -> str:
        """The text of an error, on one line and without a secret."""
        return " ".join(redact(str(error), [self._password]).split())

    def _open(self, application: str, until: float | None = None) -> LogConnection:
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
            raw.execute(_CONFIGURE, [self._lock_timeout, *(options[name] for name in _KEEPALIVES)])
        except BaseException:
            raw.close()
            raise
        return raw

    def _verify(self, raw: LogConnection) -> None:
        self._require_tables(raw)
        meta = self._meta(raw)
        found = _server(raw)
        if not _has_table(raw, "txpool_memos"):
            raise LogError(f"{self.name} was made by an earlier txpool: `txpool-recovery init` adds what it lacks")
        # Where the role may not see the server's identity, there is nothing to compare.
        if found and meta["server"] and found != meta["server"]:
            raise LogError(
                f"{self.name} is a copy or was moved: it was made on server {meta['server']}, and this one is {found}. "
                f"Two copies in use would end transactions both ways. Once the other is not in use any more, "
                f"`txpool-recovery init --adopt` accepts this one, and leaves all earlier branches alone"
            )

    def _meta(self, raw: LogConnection) -> dict[str, str]:
        meta: dict[str, str] = dict(raw.execute("SELECT name, value FROM txpool_meta").fetchall())
        require(meta.get("format"), self.name)
        return meta

    def _require_tables(self, raw: LogConnection) -> None:
        if not _has_table(raw, "txpool_meta"):
            raise LogError(
                f"{self.name} is missing: its tables are not on the search path there. Empty ones would roll back what "
                f"is committed, so they are made only by `txpool-recovery init`, or with log.create = true"
            )
        self._require_ours(raw)

    def _require_ours(self, raw: LogConnection) -> None:
        """LogError where a table belongs to a foreign role, or a foreign role's trigger, rule or the like is on it."""
        faults = relation_faults(raw, TABLES)
        if faults:
            raise LogError(f"{self.name}: {message_of(faults[0])}")


def _has_table(raw: LogConnection, name: str) -> bool:
    return raw.execute("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", [name]).fetchone() is not None


def _add_tables(raw: LogConnection) -> None:
    if not _has_table(raw, "txpool_memos"):
        raw.execute(_ADDED)


def _server(raw: LogConnection) -> str:
    return identify(raw.session, raw.until).identity


def _set(raw: LogConnection, meta: dict[str, str]) -> None:
    for item in meta.items():
        raw.execute(
            "INSERT INTO txpool_meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value", item
        )
