"""The findings of `txpool check` about a decision log in MariaDB or MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from txpool.findings.finding import Finding, NotConnected, failure, ok, warning
from txpool.log.sql.statements import TABLES
from txpool.resources.mysql.log.facts import POOLER, WhyNot, settings_of, why_nots
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.session.server import CREATE_IDENTITY, IDENTITY_TABLE, Server, ask

if TYPE_CHECKING:
    from txpool.resources.mysql.log.server import MySQLLogServer
    from txpool.resources.mysql.session.state import MySQLRawConnection

_REFUSED: Final = frozenset({1044, 1045, 1049, 1130, 1698})
_NEEDED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_NAMED: Final = 5
#: What the system does of itself: seconds until the first probe, between two, and their number.
_SYSTEM: Final = (7200, 75, 9)
_KEEPALIVE: Final = "select @@tcp_keepalive_time, @@tcp_keepalive_interval, @@tcp_keepalive_probes"
_SLOW: Final = 600.0  # seconds


def findings(server: MySQLLogServer) -> Iterator[Finding]:
    """As `LogServer.findings`."""
    try:
        raw = server.connect_unchecked()
    except server.errors as error:
        refused = code_of(error) in _REFUSED
        what = "the log's server refuses the connection" if refused else "the log's server cannot be reached"
        do = "correct log.user, log.password or log.url; or GRANT" if refused else "start it, or correct log.url"
        raise NotConnected(failure("connection", f"{what}: {server.describe(error)}", do=do)) from error
    with closing(raw):
        facts, settings = ask(raw.session), settings_of(raw)
        yield ok("version", f"the log is in {facts.product}")
        faults = list(why_nots(facts, settings))
        for fault in faults:
            yield failure(_topic(fault), *fault)
        yield from _vanished_hosts(raw, facts)
        yield from _identity(raw, facts)
    if not faults:
        server.close(server.connect("txpool check"))
        with closing(server.connect_unchecked()) as again:
            yield from _accounts(again)


def _topic(fault: WhyNot) -> str:
    if fault is POOLER:
        return "pooler"
    return "durability" if "sync" in fault[0] or "flush" in fault[0] else "server"


def _vanished_hosts(raw: MySQLRawConnection, facts: Server) -> Iterator[Finding]:
    """How soon the server notices that a coordinator's host has vanished, and frees its lease."""
    asked: tuple[Any, ...] = (0, 0, 0)
    if facts.mariadb:
        ((*asked,),) = raw.session.run(_KEEPALIVE)
    idle, interval, count = (int(own) or system for own, system in zip(asked, _SYSTEM, strict=True))
    seconds = idle + interval * count
    if seconds <= _SLOW:
        yield ok("keepalive", f"the server notices within {seconds} s that a coordinator's host has vanished")
        return
    if facts.mariadb:
        do = "SET GLOBAL tcp_keepalive_time = 30, tcp_keepalive_interval = 10, tcp_keepalive_probes = 3; "
        do += "and write it into the server's file"
    else:
        do = "sysctl net.ipv4.tcp_keepalive_time=30 net.ipv4.tcp_keepalive_intvl=10 net.ipv4.tcp_keepalive_probes=3 "
        do += "on the server's machine, which this check cannot ask"
    yield warning(
        "keepalive",
        f"unless the system of the server's machine says otherwise, it notices after {seconds // 60} minutes that a "
        "coordinator's host has vanished",
        "until then it counts as living, and others wait with what it left. A process that dies is noticed at once",
        do,
    )


def _identity(raw: MySQLRawConnection, facts: Server) -> Iterator[Finding]:
    if facts.identity:
        return
    ((user,),) = raw.session.run("select current_user()")
    account = "@".join(f"'{part}'" for part in str(user).rpartition("@")[::2])
    yield warning(
        "identity",
        f"{user} cannot read the server's identity in {IDENTITY_TABLE}",
        "a copy of the log on another server would not be noticed, and two in use end transactions both ways",
        f"before the log is made, as an administrator: {'; '.join(CREATE_IDENTITY)}; "
        f"INSERT IGNORE INTO {IDENTITY_TABLE} VALUES (1, LEFT(SHA2(UUID(), 256), 24)); "
        f"GRANT SELECT ON {IDENTITY_TABLE} TO {account};",
    )


def _accounts(raw: MySQLRawConnection) -> Iterator[Finding]:
    """Who else may write the log, if this account may read that."""
    names = ", ".join(f"'{name}'" for name in TABLES)
    writes = "privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'DROP', 'ALTER', 'TRIGGER')"
    with suppress(Exception):  # an account that may not read the privileges of others sees its own alone
        rows = raw.session.run(
            f"select distinct grantee from information_schema.schema_privileges where {writes} "
            "and table_schema = database() union select distinct grantee from information_schema.table_privileges "
            f"where {writes} and table_schema = database() and table_name in ({names})"
        )
        ((user,),) = raw.session.run("select current_user()")
        own = "@".join(f"'{part}'" for part in str(user).rpartition("@")[::2])
        others = sorted(str(grantee) for (grantee,) in rows if str(grantee) != own)
        if others:
            more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            yield warning(
                "grants",
                f"other accounts may write the log: {', '.join(others[:_NAMED])}{more}",
                "an account that writes the log can change decisions and leases",
                "REVOKE it from those that are no coordinator's and no recovery's",
            )
