"""The decision log in a database of MariaDB or MySQL.

An incarnation's lease is a lock by GET_LOCK, which the server frees with its session. Any account may take a lock of
any name, on the whole server. So its name is random, and stands in the registry alone, beside the number of the session
that holds it. A transaction is visible before it is on disk: the fence is a write, which makes durable what was before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from txpool.config.secrets import without_secrets
from txpool.errors import LogError
from txpool.findings.finding import Finding
from txpool.log.sql.server import LogServer, Parameters
from txpool.log.sql.statements import TABLES, Script
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.log.connecting import Connecting
from txpool.resources.mysql.log.facts import as_text, durability_of, settings_of, why_nots
from txpool.resources.mysql.log.statements import RECORD, SCHEMA, STATEMENTS
from txpool.resources.mysql.session.protocol import CommandResult, code_of
from txpool.resources.mysql.session.server import ask, assign_identity

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_DUPLICATE: Final = 1062
_NO_TABLE: Final = 1146
# The server refuses before its commit point: locks, rights, names, data, a server or transaction that is read-only, a
# binary log that cannot take the statement. Any other error counts as unknown, as those of COMMIT itself must.
_DEFINITE: Final = frozenset(
    {xa.DEADLOCK, 1020, xa.LOCK_TIMEOUT, _DUPLICATE, _NO_TABLE}
    | {1040, 1044, 1045, 1048, 1049, 1054, 1064, 1114, 1142, 1143, 1203, 1206, 1223, 1226, 1227, 1264, 1290, 1292}
    | {1364, 1366, 1406, 1665, 1792, 1836}
)
#: Two transactions were in each other's way, and this one gave in: a deadlock, or a record that has changed meanwhile.
_CONFLICTS: Final = frozenset({xa.DEADLOCK, 1020})
_ATTEMPTS: Final = 10
_TABLES_OF: Final = f"""SELECT table_name, table_type, engine FROM information_schema.tables
    WHERE table_schema = database() AND table_name IN ({", ".join(f"'{name}'" for name in TABLES)})"""
_TRIGGERS: Final = f"""SELECT trigger_name, event_object_table, definer FROM information_schema.triggers
    WHERE event_object_schema = database() AND definer <> current_user()
    AND event_object_table IN ({", ".join(f"'{name}'" for name in TABLES)})"""


class MySQLLogServer(LogServer):
    """A log's server over PyMySQL or mysqlclient."""

    statements = STATEMENTS
    place = "in that database"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._connecting = Connecting(self.url, self._user, self._lock_timeout)
        self.errors = (self._connecting.driver.module.Error,)

    # -- connections --------------------------------------------------------------------------------------------

    def open_raw(self, application: str, timeout: float | None) -> MySQLRawConnection:
        until = _after(timeout)
        raw = self.connect_unchecked(timeout)
        raw.until = until  # all that is asked until the connection is verified
        try:
            self._connecting.configure(raw, until)
            self._require_durable(raw)
        except BaseException:
            raw.break_off()
            raise
        return raw

    def opened(self, raw: MySQLRawConnection) -> MySQLRawConnection:
        raw.until = None
        return raw

    def connect_unchecked(self, timeout: float | None = None) -> MySQLRawConnection:
        """A connection to a server that nothing is known of. The driver's errors."""
        password = None if self._password is None else self._password.reveal()
        return without_secrets(lambda: self._connecting.connect(password, timeout), self.name, [self._password])

    def _require_durable(self, raw: MySQLRawConnection) -> None:
        """LogError if what is written here may be lost, or does not hold for all who share the log."""
        why_not = next(iter(why_nots(ask(raw.session, until=raw.until), settings_of(raw, raw.until))), None)
        if why_not is not None:
            found, why, do = why_not
            raise LogError(f"{self.name} cannot be used: {found}: {why}. Nothing was written. {do}")

    def is_clean(self, raw: MySQLRawConnection) -> bool:
        return not (raw.lost or raw.has_results or raw.in_transaction)

    def reset(self, raw: MySQLRawConnection, timeout: float | None = None) -> None:
        raw.session.run("rollback", _after(timeout))

    def ping(self, raw: MySQLRawConnection, timeout: float | None = None) -> None:
        raw.session.ping(_after(timeout), timeout)

    def close(self, raw: MySQLRawConnection) -> None:
        raw.break_off()

    def disown(self, raw: MySQLRawConnection) -> None:
        """Nothing: the drivers' connections do so themselves after a fork."""

    # -- statements ---------------------------------------------------------------------------------------------

    def do(self, work: Callable[[Any, *Ts], T], raw: MySQLRawConnection, *arguments: *Ts) -> T:
        for _ in range(_ATTEMPTS - 1):
            try:
                return work(raw, *arguments)
            except Exception as error:
                if code_of(error) not in _CONFLICTS:
                    raise
        return work(raw, *arguments)

    def run(self, raw: MySQLRawConnection, script: Script, parameters: Parameters) -> list[tuple[Any, ...]]:
        if len(script) == 1:
            return self.execute(raw, script, parameters)
        with self.transaction(raw):
            rows = self.execute(raw, script, parameters)
            why_not = self.why_not_durable(raw)  # the settings may be others than when the session began
            if why_not:
                raise LogError(f"{self.name}: nothing was written: {why_not}")
        return rows

    def execute(
        self, raw: MySQLRawConnection, script: Script, parameters: Parameters | None = None
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for statement in script:
            found = raw.session.run(_filled(raw, statement, parameters or {}), raw.until)
            rows = [tuple(map(as_text, row)) for row in found] or rows
        return rows

    @contextmanager
    def transaction(self, raw: MySQLRawConnection) -> Iterator[None]:
        raw.session.run("start transaction")
        try:
            yield
        except BaseException:
            with suppress(*self.errors):  # it is closed then, and the server rolls back
                raw.session.run("rollback")
            raise
        raw.session.run("commit")

    @contextmanager
    def holding_registry(self, raw: MySQLRawConnection) -> Iterator[None]:
        # Here gaps are locked, too, and with them every name that is not there yet.
        raw.session.run("set transaction isolation level serializable")
        with self.transaction(raw):
            raw.session.run("select name from txpool_incarnations for update")
            yield

    def insert(self, raw: MySQLRawConnection, gtrid: str, incarnation: str, branches: str) -> bool:
        values = {"gtrid": gtrid, "branches": branches, "now": time(), "incarnation": incarnation}
        return _inserted(raw, _filled(raw, RECORD, values))

    def why_not_durable(self, raw: MySQLRawConnection) -> str:
        return "; ".join(f"{found}: {why}. {do}" for found, why, do in durability_of(settings_of(raw)))

    def is_definite(self, error: Exception) -> bool:
        return code_of(error) in _DEFINITE

    # -- leases -------------------------------------------------------------------------------------------------

    def take_lease(self, raw: MySQLRawConnection, incarnation: str) -> dict[str, object] | None:
        name = f"txpool:{secrets.token_hex(20)}"
        ((taken, session),) = raw.session.run(f"select get_lock('{name}', 0), connection_id()")
        return {"lease": name, "session": int(session)} if taken == 1 else None

    def release_lease(self, raw: MySQLRawConnection) -> None:
        raw.session.run("select release_all_locks()")

    # -- tables -------------------------------------------------------------------------------------------------

    def create(self) -> bool:
        raw = self.open_raw("txpool log", None)
        try:
            if self.exists(raw):
                self.require_ours(raw)
                self._meta(raw)
                return False
            found = self._tables(raw)
            if found and "txpool_meta" not in found and "txpool_meta" not in self._tables(raw):
                raise LogError(
                    f"{self.name} has lost its table txpool_meta, and {', '.join(sorted(found))} already exists there: "
                    "nothing done. Restore it, or drop the others if nothing of theirs is in doubt"
                )
            for statement in SCHEMA:
                raw.session.run(statement)
            self.require_ours(raw)
            if raw.is_mariadb and not ask(raw.session).identity:
                assign_identity(raw.session)
            return self._begin(raw)
        finally:
            self.close(raw)

    def _begin(self, raw: MySQLRawConnection) -> bool:
        """Write what makes the tables a log; whether this was the one of several that did."""
        meta = self.new_meta(self.identity(raw))
        rows = ", ".join(f"({raw.session.quoted(name)}, {raw.session.quoted(value)})" for name, value in meta.items())
        try:
            raw.session.run(f"insert into txpool_meta (name, value) values {rows}")
        except self.errors as error:
            if code_of(error) != _DUPLICATE:
                raise
            return False
        return True

    def exists(self, raw: MySQLRawConnection) -> bool:
        try:
            return bool(self.execute(raw, ("SELECT 1 FROM txpool_meta WHERE name = 'format'",)))
        except self.errors as error:
            if code_of(error) != _NO_TABLE:
                raise
            return False

    def require_ours(self, raw: MySQLRawConnection) -> None:
        """LogError if a table is lacking or has no transactions, or another account's trigger is on it.

        A table has no owner here: who may make one in the log's database is trusted.
        """
        tables = self._tables(raw)
        for name in TABLES:
            if name not in tables:
                raise LogError(
                    f"{self.name} lacks the table {name}: nothing was done. `txpool-recovery init` says more"
                )
            if tables[name] != ("BASE TABLE", "INNODB"):
                raise LogError(
                    f"{self.name}: {name} is a {tables[name][0].lower()} of engine {tables[name][1] or 'none'}: a "
                    f"decision needs transactions. Nothing was done; ALTER TABLE {name} ENGINE = InnoDB"
                )
        for trigger, table, definer in self.execute(raw, (_TRIGGERS,)):
            raise LogError(f"{self.name}: trigger {trigger} of {table} belongs to {definer}. Nothing was done; drop it")

    def _tables(self, raw: MySQLRawConnection) -> dict[str, tuple[str, str]]:
        rows = self.execute(raw, (_TABLES_OF,))
        return {str(name): (str(kind).upper(), str(engine or "").upper()) for name, kind, engine in rows}

    def identity(self, raw: MySQLRawConnection) -> str:
        identity = ask(raw.session, until=raw.until).identity
        return f"{identity}/{self._connecting.database}" if identity else ""

    def findings(self) -> Iterator[Finding]:
        from txpool.resources.mysql.log.check import findings

        return findings(self)


def _after(timeout: float | None) -> float | None:
    return None if timeout is None else monotonic() + timeout


def _inserted(raw: MySQLRawConnection, statement: str) -> bool:
    session = raw.session
    session.send(statement)
    answer: CommandResult = session.receive()[0]
    if answer.error is None:
        return answer.affected == 1
    if answer.code == _DUPLICATE:
        return False
    raise answer.error


def _filled(raw: MySQLRawConnection, statement: str, parameters: Mapping[str, object]) -> str:
    """A statement with its parameters in it."""
    return statement % {name: _literal(raw, value) for name, value in parameters.items()} if parameters else statement


def _literal(raw: MySQLRawConnection, value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return str(raw.session.quoted(value))
    if isinstance(value, Sequence):  # as IN takes it; NULL is in no list
        return f"({', '.join(_literal(raw, each) for each in value) or 'NULL'})"
    return repr(int(value) if isinstance(value, bool) else value)
