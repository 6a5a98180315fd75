"""Findings about prepared transactions: whether PostgreSQL can prepare, recovery can end branches, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg

from txpool.config.settings import DataSourceSettings
from txpool.errors import described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
from txpool.resources.postgresql.check.connecting import connected, quoted, user_of
from txpool.resources.postgresql.check.server import ServerFacts, server_facts
from txpool.resources.postgresql.qualified import qualified
from txpool.xid import make_gtrid, make_xid, new_incarnation, parse

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

#: The node in the xid of a check's own branch, which is rolled back as soon as it is prepared.
NODE = "txpool-check"

_MOST_SHOWN = 5
_HOLDERS = "see who holds them: SELECT gid, prepared, owner, database FROM pg_prepared_xacts ORDER BY prepared;"
_LISTING = qualified("""select gid, extract(epoch from (clock_timestamp() - prepared))::float8, owner::text
    from pg_prepared_xacts where database = current_database() order by prepared""")
_COUNT = qualified("select count(*) from pg_prepared_xacts")
_IS_PREPARED = qualified("select 1 from pg_prepared_xacts where gid = %s")


def findings(
    raw: PsycopgRawConnection, server: ServerFacts, settings: DataSourceSettings, old: float
) -> Iterator[Finding]:
    """All findings about preparing; `raw` has been given to `server_facts`. `old` is in seconds."""
    maximum = int(server.settings["max_prepared_transactions"].value)
    if maximum == 0:
        yield failure(
            "slots",
            "max_prepared_transactions is 0",
            "this server cannot prepare, and mode = xa prepares",
            _how_to_raise_maximum(server, 100) + ", or write mode = cmr, which needs no slots",
        )
        return
    try:
        listed = raw.execute(_LISTING).fetchall()
        ((used,),) = raw.execute(_COUNT).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        yield failure(
            "listing",
            f"{server.user} may not read pg_prepared_xacts",
            "recovery cannot see the branches that a crash leaves prepared, and their locks would stay for ever",
            f"GRANT SELECT ON pg_catalog.pg_prepared_xacts TO {quoted(server.user)}; and, where it was revoked too, "
            f"GRANT EXECUTE ON FUNCTION pg_prepared_xact() TO {quoted(server.user)};",
        )
        return
    yield _slots(server, maximum, used, settings.pool_max_size)
    yield from _left_over(server, listed, old)
    if maximum - used > 1 and not server.standby:  # never the last slot, which a transaction may need
        yield from _prepare_and_roll_back(raw, server, settings)
    if any(parse(gid) is not None for gid, _, _ in listed):
        yield from _of_other_roles(settings, user_of(settings, recovery=True) or server.user)


def _of_other_roles(settings: DataSourceSettings, recovery: str) -> Iterator[Finding]:
    """A failure if roles that are not trusted have prepared branches with xids of txpool's form."""
    manager = PostgreSQLBranchRecovery(settings.name, make_driver(settings), owners=settings.prepared_owners)
    listed = [branch for branch in manager.recover() if not branch.elsewhere and branch.xid.node != NODE]
    others = sorted({branch.owner or "a role that is gone" for branch in listed if not branch.prepared_by(())})
    if others:
        yield failure(
            "recovery",
            f"branches of txpool here were prepared by {', '.join(others)}, and recovery connects as {recovery}",
            "the name of a branch proves nothing: recovery leaves branches of other roles prepared, with their locks, "
            "whatever user it connects as",
            f"if that role is this application's, write prepared.owners = {', '.join(others)}; otherwise revoke its "
            "right to connect, and let an administrator roll back what it has prepared",
        )


def _how_to_raise_maximum(server: ServerFacts, wanted: int) -> str:
    if server.settings["max_prepared_transactions"].source == "command line":
        return f"start the server with -c max_prepared_transactions={wanted}"
    return f"ALTER SYSTEM SET max_prepared_transactions = {wanted}; and restart the server"


def _slots(server: ServerFacts, maximum: int, used: int, pool_size: int) -> Finding:
    free = maximum - used
    wanted = 2 * max(maximum, pool_size)
    if free == 0:
        return failure(
            "slots",
            f"all {maximum} prepared-transaction slots of the server are taken",
            "until one is free, no transaction can prepare: each rolls back",
            f"{_HOLDERS} then {_how_to_raise_maximum(server, wanted)}",
        )
    if free <= maximum // 5 or maximum < pool_size:
        return warning(
            "slots",
            f"{free} of {maximum} prepared-transaction slots are free, and pool.max-size is {pool_size}",
            "each transaction over several databases holds one from its prepare to its end, in a Spark job each "
            "partition does; a transaction that finds none rolls back",
            _how_to_raise_maximum(server, wanted),
        )
    return ok("slots", f"{free} of {maximum} prepared-transaction slots are free")


def _left_over(server: ServerFacts, listed: list[tuple[str, float, str]], limit: float) -> Iterator[Finding]:
    """What has been prepared in this database for longer than `limit` seconds. For people only: age decides nothing."""
    names = {gid: parse(gid) for gid, _, _ in listed}
    old = [row for row in listed if row[1] >= limit]
    ours = [row for row in old if names[row[0]] is not None and names[row[0]].node != NODE]  # type: ignore[union-attr]
    checks = [row for row in old if names[row[0]] is not None and row not in ours]
    theirs = [row for row in old if names[row[0]] is None]
    end = f"connect to {quoted(server.database)} as its owner, and ROLLBACK PREPARED {{}};"
    if ours:
        nodes = sorted({xid.node for gid, _, _ in ours if (xid := names[gid]) is not None})
        yield warning(
            "left over",
            f"prepared by txpool and not ended: {_shown(ours)}",
            "their locks are held, and VACUUM cannot clean behind them",
            f"check that recovery runs for node {', '.join(nodes)}, and what `txpool-recovery list` says of them; do "
            "not end them by hand before that",
        )
    if theirs:
        yield warning(
            "foreign",
            f"prepared by another product or by hand, and not ended: {_shown(theirs)}",
            "their locks are held, and VACUUM cannot clean behind them; txpool never touches them",
            f"find out who has prepared them; if nobody will end them, {end.format(_literal(theirs[0][0]))}",
        )
    if checks:
        yield warning(
            "left over",
            f"left by a check that was killed: {_shown(checks)}",
            "it holds a slot, and no locks",
            end.format(_literal(checks[0][0])),
        )
    if not old:
        yield ok("left over", f"{len(listed)} branches are prepared in this database, none for {limit:g} s")


def _literal(gid: str) -> str:
    return "'" + gid.replace("'", "''") + "'"


def _shown(rows: list[tuple[str, float, str]]) -> str:
    shown = [f"{gid} (owner {owner}, {_age(age)})" for gid, age, owner in rows[:_MOST_SHOWN]]
    return ", ".join(shown) + (f" and {len(rows) - _MOST_SHOWN} more" if len(rows) > _MOST_SHOWN else "")


def _age(seconds: float) -> str:
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


# -- one branch, prepared and rolled back -------------------------------------------------------------------------


def _prepare_and_roll_back(
    raw: PsycopgRawConnection, server: ServerFacts, settings: DataSourceSettings
) -> Iterator[Finding]:
    """Prepare an empty branch, and roll it back by recovery's own code and user."""
    xid = make_xid(make_gtrid(NODE, new_incarnation(), 0), 0, settings.name)
    try:
        raw.execute("begin")
        answer = raw.execute(f"prepare transaction '{xid.joined}'".encode()).statusmessage
    except psycopg.Error as error:
        pooler = "set pool_mode = transaction (or session) in the pooler" if server.pooled else ""
        yield failure(
            "prepare", f"PREPARE TRANSACTION failed: {described(error)}", "nothing can take part in mode = xa", pooler
        )
        return
    if answer != "PREPARE TRANSACTION":
        yield failure("prepare", f"PREPARE TRANSACTION was answered by {answer}", "nothing was prepared")
        return
    try:
        yield from _rolled_back_by_recovery(BranchRecord(xid, settings.name, raw.identity), server, settings)
    finally:
        if raw.execute(_IS_PREPARED, [xid.joined]).fetchone():
            raw.execute(f"rollback prepared '{xid.joined}'".encode())


def _rolled_back_by_recovery(
    record: BranchRecord, server: ServerFacts, settings: DataSourceSettings
) -> Iterator[Finding]:
    who = user_of(settings, recovery=True) or server.user
    try:
        with connected(settings, recovery=True) as raw:
            recovery = server_facts(raw)
            visible = raw.execute(_IS_PREPARED, [record.xid.joined]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        visible = None
    if not visible:
        yield failure(
            "recovery",
            f"{who} does not see what {server.user} has prepared in {server.database}",
            "recovery cannot end the branches that a crash leaves prepared",
            f"GRANT SELECT ON pg_catalog.pg_prepared_xacts TO {quoted(who)};",
        )
        return
    manager = PostgreSQLBranchRecovery(settings.name, make_driver(settings, recovery=True))
    if manager.rollback(record) is not BranchOutcome.ROLLED_BACK:
        yield failure(
            "recovery",
            f"recovery.user {who} cannot end what {server.user} has prepared",
            "branches that a crash leaves prepared stay, with their locks: only the role that prepared a branch, or "
            "a superuser, may end it",
            "leave recovery.user out, so that recovery connects as the datasource's own user; or "
            f"ALTER ROLE {quoted(who)} SUPERUSER;",
        )
        return
    power = " (a superuser)" if recovery.superuser else ""
    yield ok("recovery", f"a branch that {server.user} prepared was rolled back by {who}{power}, as recovery would")
