"""A resource manager that is no part of txpool: PostgreSQL over pg8000, with PREPARE TRANSACTION by SQL.

The test installs this file as a package of its own, with one entry point. It uses nothing of txpool's folder for
PostgreSQL: a package for another database needs no more than is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pg8000.dbapi
from pg8000.core import IN_TRANSACTION

from txpool.config.settings import DataSourceSettings
from txpool.dbapi.connection import Connection
from txpool.errors import translated
from txpool.findings.finding import Finding, ok
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, PrepareVote, Refused, Role
from txpool.resources.blocking import BlockingBranch
from txpool.resources.database import Database
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.local import LocalTransaction
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import Xid, parse

_IDENTITY = (
    "select (select system_identifier::text from pg_control_system()) || '/' || oid::text, "
    "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), "
    "to_regrole(quote_ident(session_user))::oid::text from pg_database where datname = current_database()"
)


class Raw(pg8000.dbapi.Connection):
    #: The database, the server's generation, and the login role.
    identity = timeline = role = ""


class Local(Dialect):
    """A local transaction over pg8000."""

    def in_transaction(self, raw: Raw) -> bool:
        return bool(raw._in_transaction)

    def commit(self, raw: Raw) -> None:
        if raw._transaction_status != IN_TRANSACTION:
            raise Refused("COMMIT was not sent: a statement has failed")
        raw.commit()

    def rollback(self, driver: Driver, raw: Raw, until: float | None) -> BranchOutcome:
        try:
            raw.rollback()
        except Exception:
            driver.close(raw)
        return BranchOutcome.ROLLED_BACK


class Pg8000(Driver):
    """The driver of one datasource."""

    module: Any = pg8000.dbapi
    dialect = Local()

    def __init__(self, settings: DataSourceSettings) -> None:
        self._settings = settings

    def connect(self, timeout: float | None = None) -> Raw:
        options = self._settings.connect_options()
        url = urlsplit(self._settings.url)
        with translated():
            raw = Raw(
                options.get("user") or url.username or "",
                host=url.hostname or "localhost",
                port=url.port or 5432,
                database=url.path.removeprefix("/"),
                password=options.get("password"),
                timeout=timeout,
            )
            raw.identity, raw.timeline, raw.role = self.execute(raw, _IDENTITY).fetchone()
            raw.rollback()
        return raw

    def execute(self, raw: Raw, statement: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = raw.cursor()
        cursor.execute(statement, parameters)
        return cursor

    def is_open(self, raw: Raw) -> bool:
        return raw._usock is not None

    def is_clean(self, raw: Raw) -> bool:
        return self.is_open(raw) and not raw._in_transaction

    def reset(self, raw: Raw, timeout: float | None = None) -> None:
        raw.rollback()

    def ping(self, raw: Raw, timeout: float | None = None) -> None:
        self.execute(raw, "select 1")
        raw.rollback()

    def close(self, raw: Raw) -> None:
        with suppress(Exception):
            raw.close()

    def reached_server(self, error: BaseException) -> bool:
        return isinstance(error, pg8000.dbapi.DatabaseError)

    def ended_by(self, raw: Raw, raw_cursor: Any) -> str | None:
        return None if raw._in_transaction else "commit"


class Handle(Connection):
    """The connection that users hold."""

    __slots__ = ()
    _driver_class = Raw


class Branch(LocalTransaction, BlockingBranch):
    """PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED by SQL; each blocks."""

    role = Role.PREPARED

    def __init__(self, datasource: str, driver: Driver, raw: Raw, deadlines: Deadlines, *, file: str) -> None:
        super().__init__(datasource, driver, raw, deadlines)
        self._file = file
        self._sent = False

    @property
    def location(self) -> PrepareLocation:
        return PrepareLocation(self.datasource, self._raw.identity, self._raw.role, self._file)

    @property
    def idle(self) -> bool:
        return not self._sent and super().idle

    def name(self, xid: Xid) -> None:
        self.record = BranchRecord(xid, self.datasource, self._raw.identity, {"timeline": self._raw.timeline})

    def start_prepare(self) -> None:
        if self._raw._transaction_status != IN_TRANSACTION:
            raise Refused("a statement has failed: PostgreSQL would roll back without an error")
        self._sent = True
        self._driver.execute(self._raw, f"prepare transaction '{self.record.xid.joined}'")

    def await_prepare(self) -> PrepareVote:
        return PrepareVote.COMMIT

    def end(self, *, commit: bool) -> BranchOutcome:
        return ended("commit" if commit else "rollback", self._driver, self.record) if self._sent else self.rollback()


def ended(verb: str, driver: Driver, record: BranchRecord) -> BranchOutcome:
    """End a prepared branch over a connection of its own. Nothing shows here how one has ended that is gone."""
    try:
        with closing(driver.connect()) as raw:
            raw.autocommit = True
            listed = "select 1 from pg_prepared_xacts where gid = %s"
            if driver.execute(raw, listed, [record.xid.joined]).fetchone() is None:
                if record.identity != raw.identity:
                    return BranchOutcome.UNKNOWN  # the url leads elsewhere today
                same = record.identity and record.evidence.get("timeline") == raw.timeline
                return BranchOutcome.ABSENT if same else BranchOutcome.LOST
            driver.execute(raw, f"{verb} prepared '{record.xid.joined}'")
    except Exception:
        return BranchOutcome.UNKNOWN
    return BranchOutcome.COMMITTED if verb == "commit" else BranchOutcome.ROLLED_BACK


class Recovery:
    """Recovery's access to the prepared branches of one datasource."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def identity(self) -> str:
        with closing(self._driver.connect()) as raw:
            return str(raw.identity)

    def logins(self) -> frozenset[str]:
        with closing(self._driver.connect()) as raw:
            return frozenset({raw.role})

    def recover(self) -> list[PreparedBranch]:
        query = (
            "select gid, r.oid::text from pg_prepared_xacts p join pg_roles r on r.rolname = p.owner "
            "where database = current_database()"
        )
        with closing(self._driver.connect()) as raw:
            found = [(parse(gid), role) for gid, role in self._driver.execute(raw, query).fetchall()]
        return [PreparedBranch(xid, roles=frozenset({role})) for xid, role in found if xid is not None]

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return ended("commit", self._driver, record)

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return ended("rollback", self._driver, record)


class OverPg8000(Database):
    driver = "pg8000"
    database = "PostgreSQL over pg8000"
    schemes = ("pg8000://",)
    url_example = "pg8000://user@host:5432/database"
    modes = ("xa", "local")
    requirement = "pg8000"

    def url_parameters(self) -> Collection[str]:
        return ("password",)

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        return Pg8000(settings)

    @property
    def handle(self) -> type[Connection]:
        return Handle

    def branch(self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, file: str) -> Branch:
        return Branch(datasource, driver, raw, deadlines, file=file)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> Recovery:
        return Recovery(self.make_driver(settings))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        with closing(self.make_driver(settings).connect()) as raw:
            yield ok("connection", f"{self.database} answers, and is {raw.identity}")


MANAGER = OverPg8000()
