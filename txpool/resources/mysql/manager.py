"""The resource manager of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING

from txpool.config.keys import MODES
from txpool.errors import OperationalError
from txpool.resources.database import Database
from txpool.resources.manager import PhaseTwo
from txpool.resources.parts import LogPart, SparkPart, SQLAlchemyPart
from txpool.sql.dialects import MYSQL

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import Connection
    from txpool.findings.finding import Finding
    from txpool.resources.base import OpenBranch
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver.driver import Driver
    from txpool.resources.mysql.branches.branch import MySQLBranch
    from txpool.resources.mysql.driver import MySQLDriver
    from txpool.resources.mysql.session.state import MySQLRawConnection
    from txpool.resources.mysql.tables.staging import MySQLStaging
    from txpool.resources.records import RecordsTable
    from txpool.resources.recovery_access import BranchRecovery
    from txpool.sql.characteristics import Characteristics

# The server has rolled the transaction back in favour of another, or has waited too long for its lock: over several
# databases a deadlock shows in no other way.
_CONFLICTS = frozenset({1213, 1205, 1614, 1020})
#: The client finds or keeps no connection; the server has too many, no room on its disk or in a table, takes no writes,
#: is cut off from its cluster, ends, or has ended this one.
_OUTAGES = frozenset({2002, 2003, 2005, 2006, 2012, 2013, 2055, 1021, 1040, 1042, 1047, 1053, 1077, 1079, 1114, 1158})
_OUTAGES |= {1159, 1160, 1161, 1203, 1290, 1836, 1927, 3169, 4031}


def _code(error: BaseException) -> object:
    ours = type(error).__module__.partition(".")[0] in ("pymysql", "MySQLdb")
    return error.args[0] if ours and error.args else None


class MySQL(Database):
    """MariaDB and MySQL over PyMySQL."""

    driver = "pymysql"
    database = "MariaDB or MySQL"
    sql = MYSQL
    schemes = ("mysql://", "mariadb://")
    url_example = "mysql://user@host:3306/database"
    modes = MODES
    requirement = "txpool[mariadb]"
    log = LogPart("txpool.resources.mysql.log.server:MySQLLogServer", schemes)
    spark = SparkPart("txpool.spark.table.table_write:TaskWrite", "txpool.spark.table.mysql.dialect:TABLES")
    sqlalchemy = SQLAlchemyPart("mysql+pymysql://", commits_for_tables=True, commits_for_levels=True)
    names_early = True
    waits_in_loop = True
    writes_rows = True
    lock_holders = "txpool.resources.mysql.branches.lock_holders:MySQLLockHolders"
    outbox = "txpool.resources.mysql.tables.outbox:MySQLOutbox"
    messages = "txpool.resources.mysql.tables.messages:MySQLMessages"
    lake = "txpool.resources.mysql.tables.lake:MySQLLake"

    def url_parameters(self) -> Collection[str]:
        from txpool.resources.mysql.session.address import OF_A_LOG, PARAMETERS

        return (*PARAMETERS, *OF_A_LOG, "password")

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        return self._driver_class()(settings, recovery=recovery)

    def _driver_class(self) -> type[MySQLDriver]:
        from txpool.resources.mysql.pymysql.driver import PyMySQLDriver

        return PyMySQLDriver

    @property
    def handle(self) -> type[Connection]:
        from txpool.resources.mysql.pymysql.handle import PyMySQLConnection

        return PyMySQLConnection

    def why_not_begin(self, characteristics: Characteristics) -> str:
        return ""

    def begin_as(self, raw: MySQLRawConnection, characteristics: Characteristics) -> None:
        raw.characteristics = characteristics

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        return _code(error) in _CONFLICTS

    def is_outage(self, error: BaseException) -> bool:
        code = _code(error)  # a text, if it could not connect: that names the datasource
        return code in _OUTAGES or (isinstance(error, OperationalError) and isinstance(code, str))

    def branch(
        self, datasource: str, driver: Driver, raw: MySQLRawConnection, deadlines: Deadlines, *, file: str
    ) -> OpenBranch:
        return _branch_class()(datasource, driver, raw, deadlines)  # type: ignore[arg-type]

    def phase_two(self, driver: Driver, deadlines: Deadlines) -> PhaseTwo:
        from txpool.resources.branches.adopted import PhaseTwoConnections
        from txpool.resources.mysql.branches.phase_two import MySQLPhaseTwo

        return PhaseTwoConnections(MySQLPhaseTwo, driver, deadlines)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        from txpool.resources.mysql.branches.recovery import MySQLBranchRecovery

        return MySQLBranchRecovery(self.make_driver(settings, recovery=recovery))

    @property
    def records(self) -> RecordsTable:
        return _records()

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> MySQLStaging:
        from txpool.resources.mysql.tables.staging import MySQLStaging

        return MySQLStaging(settings.name, self.make_driver(settings, recovery=True), lock_timeout=lock_timeout)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.mysql.check import findings

        return findings(settings, self._driver_class()(settings, recovery=True), timeout=timeout)


class MySQLClient(MySQL):
    """MariaDB and MySQL over mysqlclient, whose module is MySQLdb."""

    driver = "mysqlclient"
    requirement = "txpool[mysqlclient]"
    sqlalchemy = SQLAlchemyPart("mysql+mysqldb://", commits_for_tables=True, commits_for_levels=True)
    waits_in_loop = False

    def _driver_class(self) -> type[MySQLDriver]:
        from txpool.resources.mysql.mysqlclient.driver import MySQLdbDriver

        return MySQLdbDriver

    @property
    def handle(self) -> type[Connection]:
        from txpool.resources.mysql.mysqlclient.handle import MySQLdbHandle

        return MySQLdbHandle


# `branch` is called for each transaction, and an import in it would take as long as the rest.
@cache
def _branch_class() -> type[MySQLBranch]:
    from txpool.resources.mysql.branches.branch import MySQLBranch

    return MySQLBranch


# One object for both drivers. A cached_property would take a lock, which a fork could leave held.
@cache
def _records() -> RecordsTable:
    from txpool.resources.mysql.tables.records import MySQLRecords

    return MySQLRecords()


PYMYSQL = MySQL()
MYSQLCLIENT = MySQLClient()
