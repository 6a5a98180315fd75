"""The findings of `txpool check` about a datasource over JDBC. It leaves nothing behind but txpool's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from txpool.errors import ConfigurationError, described
from txpool.findings.finding import Finding, NotConnected, failure, ok, warning
from txpool.findings.marks import CREATE, mark_count
from txpool.resources.base import Role
from txpool.resources.jdbc.databases import OTHER
from txpool.resources.jdbc.databases.h2 import is_served, url_of
from txpool.resources.jdbc.databases.mariadb import MariaDB, MySQLSession
from txpool.resources.jdbc.databases.own_tables import CREATE as OWN_TABLES
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.mysql.proof_findings import generation_findings, identity_findings
from txpool.resources.mysql.session.pooler import BehindPooler
from txpool.resources.mysql.session.server import may_add_generation, may_read_generations
from txpool.resources.postgresql.qualified import qualified

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.jdbc.driver import JdbcDriver
    from txpool.resources.jdbc.session import XaConnection

#: What cannot be asked over JDBC, of servers that are not tried here: by a word in the product's name.
_IN_WORDS: Final = {
    "oracle": (
        "grants",
        "recovery lists, commits and rolls back by DBA_PENDING_TRANSACTIONS and DBMS_XA, and without the grants it "
        "would find nothing, while rows in doubt block even readers (ORA-01591)",
        "as SYS: GRANT SELECT ON SYS.DBA_PENDING_TRANSACTIONS, SELECT ON SYS.PENDING_TRANS$, SELECT ON "
        "SYS.DBA_2PC_PENDING and EXECUTE ON SYS.DBMS_XA TO the datasource's user, and FORCE ANY TRANSACTION TO "
        "recovery.user",
    ),
    "microsoft sql server": (
        "msdtc",
        "the driver's XAResource calls extended procedures that are installed once for a server, and that work by "
        "MSDTC: without them XA START fails",
        "EXEC sp_sqljdbc_xa_install (SQL Server 2017 CU16 and later), enable XA transactions in MSDTC, and add the "
        "user to the role SqlJDBCXAUser of master",
    ),
    "db2": (
        "in-doubt",
        "Db2 keeps what is prepared for ever, and its command LIST INDOUBT TRANSACTIONS shows it to an operator",
        "let recovery run",
    ),
}
_PREPARED_SLOTS: Final = qualified("select current_setting('max_prepared_transactions')")


def findings(settings: DataSourceSettings, driver: JdbcDriver, *, stale_after: float) -> Iterator[Finding]:
    """As `ResourceManager.findings`."""
    try:
        raw = driver.connect()
    except BehindPooler as error:
        yield failure("pooler", str(error))
        return
    except ConfigurationError:
        raise
    except driver.module.Error as error:
        raise NotConnected(failure("connection", f"the database cannot be reached: {described(error)}")) from error
    try:
        raw.autocommit = True
        yield ok("version", f"{raw.product} {raw.version}, by {_driver_of(raw)}")
        role = Role(settings.mode)
        if role is Role.PREPARED:
            yield from _prepared(raw, settings, stale_after)
        elif role is Role.MARKED:
            yield from _table(raw, settings)
        yield from _traps(raw, settings)
    finally:
        driver.close(raw)


def _driver_of(raw: XaConnection) -> str:
    metadata = call(raw.java.getMetaData)
    return f"{call(metadata.getDriverName)} {call(metadata.getDriverVersion)}"


def _prepared(raw: XaConnection, settings: DataSourceSettings, stale_after: float) -> Iterator[Finding]:
    listed = raw.database.listed(raw)
    yield ok("prepared", f"{len(listed)} branches of txpool are prepared there")
    stale = sorted(each.xid.joined for each in listed if each.age is not None and each.age > stale_after)
    if stale:
        yield warning(
            "prepared",
            f"prepared for more than {stale_after:g} s: {', '.join(stale[:5])}",
            "each holds its locks until it is ended",
            "run `txpool-recovery scan`",
        )
    if raw.product == "postgresql":
        ((slots,),) = raw.run(_PREPARED_SLOTS).fetchall()
        if int(slots) == 0:
            yield failure(
                "prepared",
                "max_prepared_transactions is 0",
                "the server cannot prepare",
                "ALTER SYSTEM SET max_prepared_transactions = 64; and restart it; or write mode = cmr",
            )
    if raw.database is OTHER:
        yield warning(
            "identity",
            f"{raw.product} is a database that txpool does not know",
            "its driver's word is believed as far as the XA specification goes; it does not tell who it is, so a "
            "branch that is gone after a lost answer is a heuristic hazard",
            "try it first: `txpool check --conformance`",
        )
    elif isinstance(raw.database, MariaDB):
        session = MySQLSession(raw)
        ((user,),) = session.run("select current_user()")
        yield from identity_findings(raw.identity, str(user))
        if settings.recovery_user:
            yield from generation_findings(may_read_generations(session), str(user), adds=False, by_rows=False)
        else:
            yield from generation_findings(may_add_generation(session), str(user), by_rows=False)
    elif not raw.identity:
        yield warning(
            "identity",
            "this role cannot read the database's identity, or cannot make it",
            "a decision keeps it, so that a url that later leads to another database is noticed, and so that a branch "
            "that is gone after a lost answer counts as committed",
            f"as an administrator: {'; '.join(OWN_TABLES)}; and GRANT SELECT, INSERT, DELETE on them",
        )


def _table(raw: XaConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    name = settings.cmr_table
    marks = raw.database.marks
    table = None if marks is None else marks.qualified_name(raw, name)
    if marks is None or table is None:
        yield failure("table", f"there is no table {name}", "it holds the decision of each transaction", CREATE)
        return
    query = marks.spelled(f"select count(*) from {table} where {marks.is_mark}")
    ((count,),) = raw.run(query).fetchall()
    yield mark_count(name, int(count), 0.0)


def _traps(raw: XaConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    if raw.product == "h2":
        yield from _traps_of_h2(raw, settings)
    for word, (topic, why, do) in _IN_WORDS.items():
        if word in raw.product and settings.mode == "xa":
            yield warning(topic, f"{raw.product} needs what cannot be asked over JDBC", why, do)


def _traps_of_h2(raw: XaConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    if settings.h2_accept == "silent-commits":
        yield warning(
            "silent-commits",
            "H2 commits in silence if a program executes COMMIT or DDL in a transaction, and h2.accept allows it",
            "what was done before such a statement stays, whatever becomes of the transaction",
            "leave h2.accept out: then txpool refuses such statements",
        )
    else:
        yield ok("silent-commits", "H2 would commit in silence if a program executes COMMIT or DDL: that is refused")
    url = url_of(raw)
    if url.startswith("jdbc:h2:mem:"):
        yield warning(
            "memory",
            "the database is in this process's memory, and is gone with it, prepared branches too",
            "a decision of a process that has crashed cannot be carried out there, and recovery reports it",
            "write jdbc:h2:file:… or jdbc:h2:tcp:… for data that matters",
        )
    elif not is_served(url):
        yield warning(
            "one-process",
            "the database's file is open in one process at a time",
            "recovery cannot open it while an application has it, and recovers it once that has ended",
            "write jdbc:h2:tcp:…, or ;AUTO_SERVER=TRUE behind the url",
        )
