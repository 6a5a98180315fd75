"""PostgreSQL's resource manager."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from txpool.config.keys import MODES
from txpool.config.secrets import quoted_around_references
from txpool.errors import ConfigurationError
from txpool.resources.database import Database
from txpool.resources.manager import PhaseTwo
from txpool.resources.parts import DsnPart, LogPart, SparkPart, SQLAlchemyPart
from txpool.sql.dialects import POSTGRESQL

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.findings.finding import Finding
    from txpool.resources.base import OpenBranch
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver.driver import Driver
    from txpool.resources.postgresql.branches.branch import PostgreSQLBranch
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection
    from txpool.resources.postgresql.tables.staging import Staging
    from txpool.resources.records import RecordsTable
    from txpool.resources.recovery_access import BranchRecovery
    from txpool.sql.characteristics import Characteristics

# A serialization failure or a deadlock: PostgreSQL has rolled back this transaction in favour of another.
_CONFLICTS = frozenset({"40001", "40P01"})
# To PREPARE this says that no prepared slot is free. To a statement it says that the server has too little memory for
# it, which the next attempt would not change.
_NO_SLOT = "53200"
#: No connection, a server that takes no writes now, no room on the disk, too many connections, a lock that others hold
#: for too long, an administrator's or the server's end, its disk's errors.
_OUTAGES = ("08", "25006", "53100", "53300", "55P03", "57P", "58")
_CONNINFO = re.compile(r"\s*[a-z_]+\s*=")


def _is_conninfo(text: str) -> bool:
    """Whether a text is a string of key=value, as `host=localhost dbname=orders`."""
    return _CONNINFO.match(text) is not None


def _url_of(dsn: str) -> tuple[str, str | None]:
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters: dict[str, Any] | None = conninfo_to_dict(dsn)
    except Error:
        parameters = None
    if parameters is None:  # outside of the handler, since libpq's error shows a part of the text
        raise ConfigurationError("the connection string is none that libpq can read: write key=value with spaces")
    # Not in the url: what a reference stands for may have any character.
    password = parameters.pop("password", None)
    quoted = {name: quoted_around_references(str(value)) for name, value in parameters.items()}
    database = quoted.pop("dbname", "")
    return f"postgresql:///{database}?{'&'.join(map('='.join, quoted.items()))}".rstrip("?"), password


def _with_adapters(connection: PEP249Connection, arguments: Mapping[str, Any]) -> None:
    context = arguments.get("context")
    if context is not None:  # the dialect's own adapters: json_deserializer and the like are in them
        connection.use_adapters(context)


class PostgreSQL(Database):
    """PostgreSQL over psycopg 3."""

    driver = "psycopg"
    database = "PostgreSQL"
    sql = POSTGRESQL
    schemes = ("postgresql://", "postgres://")
    url_example = "postgresql://user@host:5432/database"
    modes = MODES
    requirement = "psycopg[binary]"
    dsn = DsnPart(_is_conninfo, _url_of)
    log = LogPart("txpool.resources.postgresql.log.server:PostgreSQLLogServer", ("postgresql://",))
    spark = SparkPart(
        "txpool.spark.table.table_write:TaskWrite",
        "txpool.spark.table.postgresql.dialect:TABLES",
        counts_slots=True,
    )
    sqlalchemy = SQLAlchemyPart("postgresql+psycopg://", _with_adapters)
    lock_holders = "txpool.resources.postgresql.branches.lock_holders:PostgreSQLLockHolders"
    outbox = "txpool.resources.postgresql.tables.outbox:PostgreSQLOutbox"
    messages = "txpool.resources.postgresql.tables.messages:PostgreSQLMessages"
    lake = "txpool.resources.postgresql.tables.lake:PostgreSQLLake"
    writes_rows = True
    waits_in_loop = True

    def url_parameters(self) -> Collection[str]:
        """The parameters of a url that libpq knows."""
        return _parameters()

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        from txpool.resources.postgresql.driver import PsycopgDriver

        return PsycopgDriver(settings, recovery=recovery)

    def why_not_begin(self, characteristics: Characteristics) -> str:
        return ""

    def begin_as(self, raw: PsycopgRawConnection, characteristics: Characteristics) -> None:
        from txpool.resources.postgresql.session.characteristics import begin_as

        begin_as(raw, characteristics)

    @property
    def handle(self) -> type[PEP249Connection]:
        from txpool.resources.postgresql.handle.connection import PsycopgConnection

        return PsycopgConnection

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        state = getattr(error, "sqlstate", None)
        return state in _CONFLICTS or (at_its_end and state == _NO_SLOT)

    def is_outage(self, error: BaseException) -> bool:
        psycopg = sys.modules.get("psycopg")
        if psycopg is None or not isinstance(error, psycopg.Error):
            return False
        state: str | None = error.sqlstate
        return isinstance(error, psycopg.OperationalError) if state is None else state.startswith(_OUTAGES)

    def branch(
        self, datasource: str, driver: Driver, raw: PsycopgRawConnection, deadlines: Deadlines, *, file: str
    ) -> OpenBranch:
        return _branch_class()(datasource, driver, raw, deadlines)  # type: ignore[arg-type]

    def phase_two(self, driver: Driver, deadlines: Deadlines) -> PhaseTwo:
        from txpool.resources.branches.adopted import PhaseTwoConnections
        from txpool.resources.postgresql.branches.phase_two import PostgreSQLPhaseTwo

        return PhaseTwoConnections(PostgreSQLPhaseTwo, driver, deadlines)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
        from txpool.resources.postgresql.driver import configured_user

        user = configured_user(settings) if recovery and settings.recovery_user else None
        driver = self.make_driver(settings, recovery=recovery)
        return PostgreSQLBranchRecovery(settings.name, driver, user=user, owners=settings.prepared_owners)

    @property
    def records(self) -> RecordsTable:
        return _records()

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> Staging:
        from txpool.resources.postgresql.tables.staging import Staging

        return Staging(settings.name, self.make_driver(settings, recovery=True), lock_timeout=lock_timeout)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.postgresql.check import findings

        return findings(settings, stale_after=stale_after, timeout=timeout)


# A cached_property would take a lock, which a fork could leave held.
@cache
def _parameters() -> frozenset[str]:
    from psycopg.pq import Conninfo

    return frozenset(option.keyword.decode() for option in Conninfo.parse(b"")) | {"ssl"}


@cache
def _records() -> RecordsTable:
    from txpool.resources.postgresql.tables.records import PostgreSQLRecords

    return PostgreSQLRecords()


@cache
def _branch_class() -> type[PostgreSQLBranch]:
    from txpool.resources.postgresql.branches.branch import PostgreSQLBranch

    return PostgreSQLBranch


MANAGER = PostgreSQL()
