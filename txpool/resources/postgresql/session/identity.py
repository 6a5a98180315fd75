"""Which server and database a session leads to, and as whom: what every session asks first."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.libpq import LibpqSession, failure, value

# Every session runs these first. The timeline belongs to a transaction's id: after a failover that lost transactions,
# their ids are used again.
TIMELINE = qualified("case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end")
ROLE = qualified("to_regrole(quote_ident(session_user::text))::oid")
_SYSTEM = "(select system_identifier::text from pg_control_system())"
_DATABASE = "(select oid::text from pg_database where datname = current_database())"
#: The server's own number of the session: a pooler gives its clients others, and in transaction mode it may be another
#: one in each transaction.
SESSION = qualified("select pg_backend_pid()")
#: The database's identity: empty if the role may not read it.
IDENTITY = qualified(f"{_SYSTEM} || ('/' || {_DATABASE})")


class ServerIdentity(NamedTuple):
    """The database's identity, the server's timeline and the session's login role, as in RawConnection, and the
    server's number of the session.
    """

    identity: str
    timeline: str
    role: str
    pid: int


def identify(session: LibpqSession, until: float | None = None) -> ServerIdentity:
    """Ask the server for its identity; identity and timeline are empty if the role may not read them."""
    session.send(f"{SESSION}; select {ROLE}; select {IDENTITY}; select {TIMELINE}")
    pid, *found = session.receive(until)
    error = failure([pid, *found])
    if error is not None and not isinstance(error, psycopg.errors.InsufficientPrivilege):
        raise error
    role = value(found[0]) or ""
    identity, timeline = (value(each) or "" for each in found[1:]) if error is None else ("", "")
    return ServerIdentity(identity, timeline, role, int(value(pid) or 0))
