"""The resource manager of databases over JDBC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from txpool.config.keys import MODES
from txpool.resources.database import Database
from txpool.resources.manager import PhaseTwo
from txpool.resources.parts import SparkPart

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.findings.finding import Finding
    from txpool.resources.base import OpenBranch
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.driver.driver import Driver
    from txpool.resources.jdbc.session import XaConnection
    from txpool.resources.recovery_access import BranchRecovery
    from txpool.sql.characteristics import Characteristics
    from txpool.sql.dialects import SqlDialect

#: Class 40 of SQLState: the database has rolled the transaction back in favour of another. And lock timeouts of
#: MariaDB, H2 and Derby: over several databases a deadlock shows in no other way.
_CONFLICTS: Final = frozenset({"HYT00", "40XL1", "40XL2", "40001", "40P01"})
_LOCK_TIMEOUTS: Final = frozenset({1205, 1213, 50200})
#: As `is_outage` of PostgreSQL and of MariaDB has it, of what is no lost connection.
_OUTAGES: Final = frozenset({"25006", "53100", "53300", "55P03", "58000", "58030"})
_MARIADB_OUTAGES: Final = frozenset(("HY000", code) for code in (1021, 1114, 1290, 1836))


class Jdbc(Database):
    """Databases over JDBC, by JPype: any with an XADataSource, and others as marked or last."""

    driver = "jdbc"
    database = "JDBC"
    schemes = ("jdbc:",)
    url_example = "jdbc:postgresql://host:5432/database"
    modes = MODES
    requirement = "txpool[jdbc]"
    names_early = True
    lock_holders = "txpool.resources.jdbc.branches.lock_holders:JdbcLockHolders"
    spark = SparkPart(
        why_no_tasks="is reached over JDBC, which write_table() does not write: use foreach_partition or map_partitions"
    )

    def check(self, settings: DataSourceSettings) -> None:
        values = settings.properties
        if not ("url" in values or settings.xaDataSourceClassName):
            raise values.error("url", f"is missing: write url = {self.url_example}, or xaDataSourceClassName")
        if settings.jdbc_driver_class is not None:
            if settings.xaDataSourceClassName is not None:
                raise values.error("jdbc.driver-class", "is given beside xaDataSourceClassName: leave one out")
            if "url" not in values:
                raise values.error("url", "is missing, which jdbc.driver-class needs: write url = jdbc:…")
            if settings.mode == "xa":
                raise values.error(
                    "mode",
                    "is no use with jdbc.driver-class, which names no XADataSource. Write mode = cmr, last-resource "
                    "or local",
                )

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        from txpool.resources.jdbc.driver import JdbcDriver

        return JdbcDriver(settings, recovery=recovery)

    @property
    def handle(self) -> type[PEP249Connection]:
        from txpool.resources.jdbc.handle import JdbcHandle

        return JdbcHandle

    def why_not_begin(self, characteristics: Characteristics) -> str:
        return ""

    def sql_of(self, raw: XaConnection) -> SqlDialect | None:
        dialect: SqlDialect = raw.database.sql
        return None if raw.accepts_silent_commits else dialect

    def begin_as(self, raw: XaConnection, characteristics: Characteristics) -> None:
        from txpool.resources.jdbc.driver import begin_as

        begin_as(raw, characteristics)

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        state, code = getattr(error, "sqlstate", ""), getattr(error, "vendor_code", 0)
        return hasattr(error, "java_class") and (state in _CONFLICTS or code in _LOCK_TIMEOUTS)

    def is_outage(self, error: BaseException) -> bool:
        if not hasattr(error, "java_class"):
            return False
        state, code = getattr(error, "sqlstate", ""), getattr(error, "vendor_code", 0)
        lost = any(each.__name__ == "ConnectionLost" for each in type(error).__mro__)
        return lost or getattr(error, "at_connect", False) or state in _OUTAGES or (state, code) in _MARIADB_OUTAGES

    def branch(
        self, datasource: str, driver: Driver, raw: XaConnection, deadlines: Deadlines, *, file: str
    ) -> OpenBranch:
        from txpool.resources.jdbc.branches.branch import JdbcBranch

        return JdbcBranch(datasource, driver, raw, deadlines)

    def phase_two(self, driver: Driver, deadlines: Deadlines) -> PhaseTwo:
        from txpool.resources.branches.adopted import PhaseTwoConnections
        from txpool.resources.jdbc.branches.phase_two import JdbcPhaseTwo

        return PhaseTwoConnections(JdbcPhaseTwo, driver, deadlines)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        from txpool.resources.jdbc.branches.recovery import JdbcBranchRecovery

        user = settings.user if recovery and settings.recovery_user else None
        return JdbcBranchRecovery(self.make_driver(settings, recovery=recovery), user)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.jdbc.check import findings
        from txpool.resources.jdbc.driver import JdbcDriver

        return findings(settings, JdbcDriver(settings, recovery=True), stale_after=stale_after)


MANAGER = Jdbc()
