"""The findings of `txpool check` about a datasource in MariaDB or MySQL. The check leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from txpool.config.settings import DataSourceSettings
from txpool.errors import Error
from txpool.findings.finding import Finding, NotConnected, failure, ok, warning
from txpool.findings.marks import COLUMNS, CREATE, DECISIONS, EVIDENCE, IS_MARK, mark_count, missing_columns, row_count
from txpool.resources.base import Role
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.driver import MySQLDriver
from txpool.resources.mysql.proof_findings import generation_findings, identity_findings
from txpool.resources.mysql.session import pooler
from txpool.resources.mysql.session.address import database_in
from txpool.resources.mysql.session.proof import account_of
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.session.server import Server, ask, may_add_generation, may_read_generations
from txpool.resources.mysql.tables.own_tables import DENIED, quoted
from txpool.resources.mysql.tables.staging import CREATED, PREFIX, REGISTER

if TYPE_CHECKING:
    from txpool.resources.mysql.session.protocol import Session
    from txpool.resources.mysql.session.state import MySQLRawConnection

_WITH_TRANSACTIONS: Final = ("InnoDB", "RocksDB", "ROCKSDB", "TokuDB", "ndbcluster")
_NAMED: Final = 5
_SETTINGS: Final = "select @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@read_only, @@wait_timeout, current_user()"
#: The account may not use the database.
_DATABASE_DENIED: Final = 1044
_REFUSED: Final = frozenset({_DATABASE_DENIED, 1045, 1049, 1130, 1698})
_ACCOUNT: Final = re.compile(r"'[^']*'@'[^']*'")
#: The beginnings of accounts that the servers themselves make.
_OWN_ACCOUNTS: Final = ("mysql.", "mariadb.", "root", "healthcheck")
_OF_A_SESSION: Final = (
    "the commands of one transaction reach one session if the pooler goes by the status in the server's answers; what "
    "belongs to a session may reach another's"
)
_KEEP_OUT: Final = (
    "use no SET, temporary tables, locks by GET_LOCK, isolation level or read-only, nor pool.initial-sql; or let url "
    "lead to the server itself"
)
_LONGEST_TRANSACTION_SECONDS: Final = 60.0  # assumed if transactions have no timeout


def findings(settings: DataSourceSettings, driver: MySQLDriver, *, timeout: float | None) -> Iterator[Finding]:
    """As `ResourceManager.findings`."""
    try:
        raw = driver.connect_unchecked()
    except driver.module.Error as error:
        raise NotConnected(_unreachable(error, settings)) from error
    with closing(raw):
        server = ask(raw.session)
        if not server.direct and settings.mode != "local":
            yield failure("pooler", pooler.FOUND, pooler.WHY, pooler.DO)
            return
        (facts,) = raw.session.run(_SETTINGS)
        yield from _server(raw, server, settings, facts, timeout or _LONGEST_TRANSACTION_SECONDS)
        if not server.direct:
            yield warning("pooler", pooler.FOUND, _OF_A_SESSION, _KEEP_OUT)
        if Role(settings.mode) is Role.PREPARED:
            yield from _prepared(raw, driver, settings, server, str(facts[4]))
            if settings.xa_evidence == "row":
                yield from _table_of_rows(raw, driver, settings)
        elif Role(settings.mode) is Role.MARKED:
            yield from _table_of_marks(raw, driver, settings.cmr_table)
        if settings.recovery_user:
            yield from _registers(raw, type(driver)(settings), str(facts[4]))
        yield from _engines(raw)


def _unreachable(error: Exception, settings: DataSourceSettings) -> Finding:
    if code_of(error) in _REFUSED:
        do, account = "correct user, password or url", _ACCOUNT.search(str(error))
        if code_of(error) == _DATABASE_DENIED and account is not None:
            database = _in_grant(database_in(urlsplit(settings.url)))
            do = f"correct url; or: GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {account[0]};"
        return failure("connection", f"the server refuses the connection: {error}", do=do)
    return failure("connection", f"the server cannot be reached: {error}", do="start it, or correct url")


def _in_grant(database: str) -> str:
    """The name of a database in a GRANT, in which _ and % would stand for others."""
    return quoted(re.sub("[_%]", r"\\\g<0>", database))


def _server(
    raw: MySQLRawConnection, server: Server, settings: DataSourceSettings, facts: tuple[Any, ...], longest: float
) -> Iterator[Finding]:
    flush, sync, read_only, wait_timeout, user = facts
    yield ok("version", f"{server.product}, user {user}, {raw.get_host_info()}")
    why_not = server.why_not_xa()
    if why_not and settings.mode == "xa":
        yield failure("xa", why_not)
    if int(flush) != 1:
        yield failure(
            "durability",
            f"innodb_flush_log_at_trx_commit is {flush}",
            "when the machine stops, confirmed commits and prepared branches can be lost, and then one database has a "
            "transaction that another has not",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1; and write it into the server's file",
        )
    if server.binary_log and int(sync) != 1:
        yield failure(
            "durability",
            f"the server writes the binary log, and sync_binlog is {sync}",
            "after a crash it rolls back what is not in that log, also what it had confirmed",
            "SET GLOBAL sync_binlog = 1; and write it into the server's file",
        )
    if str(read_only) not in ("0", "OFF"):
        yield failure("read-only", "read_only is ON", "nothing can be written, prepared or committed here")
    if int(wait_timeout) < longest:
        yield warning(
            "timeout",
            f"wait_timeout is {wait_timeout} s",
            "a session waits in its transaction while other databases work; when the server ends the session, the "
            f"whole transaction rolls back. A transaction may take {longest:g} s",
            f"write driver.init_command = SET SESSION wait_timeout = {int(longest) + 60}",
        )


def _prepared(
    raw: MySQLRawConnection, driver: MySQLDriver, settings: DataSourceSettings, server: Server, user: str
) -> Iterator[Finding]:
    try:
        listed = xa.listed(raw.session)
    except Exception as error:
        if code_of(error) != xa.NOT_ALLOWED:
            raise
        yield failure(
            "privileges",
            f"{user} may not list prepared branches",
            "recovery could not find the branches that a crash leaves, and they would hold their locks for ever",
            f"GRANT XA_RECOVER_ADMIN ON *.* TO {account_of(user)};",
        )
    else:
        yield ok("prepared", f"{len(listed)} branches of txpool are prepared on this server")
    yield from identity_findings(server.identity, user)
    if settings.xa_evidence != "row":  # its rows show how a branch has ended
        yield from _generations(raw, driver, settings, user)
    with suppress(Error):  # who may not read the accounts
        rows = raw.session.run("select distinct user from mysql.user where user <> ''")
        own = user.rpartition("@")[0]
        others = sorted(str(name) for (name,) in rows if name != own and not str(name).startswith(_OWN_ACCOUNTS))
        if others:
            more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            yield warning(
                "accounts",
                f"other accounts of this server: {', '.join(others[:_NAMED])}{more}",
                "the server does not show who has prepared a branch, and "
                + ("any account" if server.mariadb else "an account with XA_RECOVER_ADMIN")
                + " can list, commit and roll back those of others: it is trusted as a whole",
                "let only applications that trust each other share a server",
            )


def _generations(
    raw: MySQLRawConnection, driver: MySQLDriver, settings: DataSourceSettings, user: str
) -> Iterator[Finding]:
    """Whether the application adds a token, and recovery reads it; `raw` is recovery's."""
    if not settings.recovery_user:
        yield from generation_findings(may_add_generation(raw.session), user)
        return
    yield from generation_findings(may_read_generations(raw.session), user, adds=False)
    with closing(type(driver)(settings).connect_unchecked()) as own:
        ((application,),) = own.session.run("select current_user()")
        yield from generation_findings(may_add_generation(own.session), str(application))


def _registers(raw: MySQLRawConnection, application: MySQLDriver, user: str) -> Iterator[Finding]:
    """A warning if recovery cannot clean up what Spark's writes have left, as far as the application has any."""
    with suppress(Error, application.module.Error), closing(application.connect_unchecked()) as own:
        names = ", ".join(f"'{name}'" for name in (REGISTER, CREATED))
        query = "select database(), table_name from information_schema.tables where table_schema = database() "
        found = own.session.run(f"{query} and table_name in ({names})")
        refused = [name for _, name in found if not _may_sweep(raw.session, str(name))]
        if refused:
            account = account_of(user)
            yield warning(
                "spark",
                f"{user}, which recovery connects as, may not clean up by {', '.join(map(str, sorted(refused)))}",
                "the staging tables of Spark's writes that a crash leaves would stay for ever, and so would a table "
                "that a write had begun to create",
                f"GRANT SELECT, DELETE, DROP, LOCK TABLES ON {_in_grant(str(found[0][0]))}.* TO {account};",
            )


def _may_sweep(session: Session, register: str) -> bool:
    session.send(f"delete from {register} where false", f"drop table if exists {PREFIX}none")
    return all(answer.code not in DENIED for answer in session.receive())


def _engines(raw: MySQLRawConnection) -> Iterator[Finding]:
    engines = ", ".join(f"'{engine}'" for engine in _WITH_TRANSACTIONS)
    names = raw.session.run(
        "select concat(table_name, ' (', engine, ')') from information_schema.tables where table_schema = database() "
        f"and table_type = 'BASE TABLE' and engine not in ({engines}) order by 1"
    )
    if names:
        shown = ", ".join(str(name) for (name,) in names[:_NAMED])
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield failure(
            "engine",
            f"tables without transactions: {shown}{more}",
            "what is written there stays when the transaction rolls back; a transaction that has written there can "
            "only roll back",
            "ALTER TABLE … ENGINE = InnoDB",
        )


def _table_of_marks(raw: MySQLRawConnection, driver: MySQLDriver, name: str) -> Iterator[Finding]:
    faults = list(_table(raw, driver, name, DECISIONS))
    yield from faults
    if not faults:
        ((count, oldest),) = raw.session.run(
            f"select count(*), timestampdiff(second, min(made_at), current_timestamp) from {name} where {IS_MARK}"
        )
        yield mark_count(name, int(count), float(oldest or 0))


def _table_of_rows(raw: MySQLRawConnection, driver: MySQLDriver, settings: DataSourceSettings) -> Iterator[Finding]:
    name = settings.xa_evidence_table
    faults = list(_table(raw, driver, name, EVIDENCE))
    yield from faults
    if faults:
        return
    with closing(type(driver)(settings).connect_unchecked()) as own:  # `raw` is recovery's
        row = "(xid, transaction_manager_id, action_uid, kind, branches) values ('', '', '', 'abort', '')"
        sessions = {own: f"insert into {name} {row}"}
        if settings.recovery_user:
            sessions[raw] = f"delete from {name} where false"
        refused = [
            (each, answer)
            for each, statement in sessions.items()
            if (answer := _refusal(each.session, statement, f"delete from {name} where xid = ''")) is not None
        ]
        for each, (user, error) in refused:
            account = account_of(user)
            rights = "SELECT, INSERT, DELETE" if each is own else "SELECT, DELETE"
            yield failure(
                "privileges",
                f"{user} cannot write {name}: {error}",
                "each branch writes a row there before its PREPARE, or else every transaction rolls back; rows that "
                "nobody needs any more are deleted",
                f"GRANT {rights} ON {driver.marks.qualified_name(raw, name)} TO {account};",
            )
    if not refused:
        ((count,),) = raw.session.run(f"select count(*) from {name} where {IS_MARK}")
        yield row_count(name, int(count))


def _refusal(session: Session, *statements: str) -> tuple[str, Exception] | None:
    """The session's account and the error, if it may not execute these; they leave nothing behind."""
    session.send("start transaction", *statements, "rollback", "select current_user()")
    *answers, account = session.receive()
    error = next((answer.error for answer in answers if answer.error is not None), None)
    return None if error is None else (str(account.rows[0][0]), error)


def _table(raw: MySQLRawConnection, driver: MySQLDriver, name: str, holds: str) -> Iterator[Finding]:
    table = driver.marks.qualified_name(raw, name)
    if table is None:
        yield failure("table", f"there is no table {name}", holds, CREATE)
        return
    columns = {str(row[0]).lower(): row for row in raw.session.run(f"show columns from {table}")}
    lacking = [column for column in COLUMNS if column not in columns]
    if lacking:
        yield missing_columns(name, lacking, CREATE)
        return
    indexes: dict[str, list[str]] = {}
    for row in raw.session.run(f"show index from {table} where non_unique = 0"):
        indexes.setdefault(str(row[2]), []).append(str(row[4]).lower())
    if ["xid"] not in indexes.values():
        yield failure(
            "table",
            f"{name} has no unique key on xid alone",
            "it could hold a decision and recovery's abort record of the same transaction: one database would commit, "
            "and another roll back",
            f"CREATE UNIQUE INDEX xids_xid ON {table} (xid);",
        )
