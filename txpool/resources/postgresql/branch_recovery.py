"""Recovery's access to the prepared transactions of a PostgreSQL server."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing

from txpool.resources.base import BranchOutcome, BranchRecord, PreparedBranch, PreparedSlots
from txpool.resources.driver import Driver
from txpool.resources.postgresql.adopted import PhaseTwoConnection
from txpool.xid import Xid, parse

#: How many prepared transactions a server can hold, and how many it holds.
SLOTS = "select current_setting('max_prepared_transactions')::int, (select count(*) from pg_prepared_xacts)"


# Membership is read from the catalogue: pg_has_role() says of a superuser that it is a member of every role. A member
# that cannot SET ROLE to the owner (SET FALSE, as a role with CREATEROLE is of roles that it creates) cannot have
# prepared as the owner. Names of other databases are in those databases' encodings, and may be invalid in this one: so
# only gids with characters of txpool's are read, and other names as bytes. A role that may create objects in a schema
# of the search path could define a function or operator that PostgreSQL prefers to pg_catalog's: so each call here has
# arguments of exactly the right types, or names its schema.
_PREPARED = """
    with recursive prepared as (
        select * from pg_prepared_xacts
        where starts_with(gid, 'txp1:') and substring(gid from '^[A-Za-z0-9_.:-]+$') = gid
    ), counted (owner, role) as (
        select distinct p.owner, r.oid from prepared p join pg_roles r on r.rolname = p.owner
        union select c.owner, m.member from counted c join pg_auth_members m on m.roleid = c.role
            where coalesce((pg_catalog.to_jsonb(m) ->> 'set_option'::text)::boolean, true)
    ), roles as (
        select owner, pg_catalog.array_agg(role::text) as roles from counted group by owner
    )
    select gid, extract(epoch from clock_timestamp() - prepared)::float8, textsend(p.owner::text), roles.roles,
        textsend(nullif(p.database, current_database())::text), d.oid::text
    from prepared p left join roles on roles.owner = p.owner left join pg_database d on d.datname = p.database
    order by p.prepared
"""


class PostgreSQLBranchRecovery:
    """Recovery's access to prepared transactions. Thread-safe: every method opens a connection and closes it, but for
    `phase_two`, whose branches share one.

    `user` is the login role of the datasource's own sessions, where these connections log in as another; empty where it
    is not known. `owners` are the roles of prepared.owners, whose branches are ours as well.
    """

    def __init__(
        self, datasource: str, driver: Driver, *, user: str | None = None, owners: Collection[str] = ()
    ) -> None:
        self._datasource = datasource
        self._driver = driver
        self._user = user
        self._failures: dict[Xid, str] = {}
        self._owners = owners

    def identity(self) -> str:
        with closing(self._driver.connect()) as raw:
            return str(raw.identity)

    def logins(self) -> frozenset[str]:
        with closing(self._driver.connect()) as raw:
            if self._user is None:
                return frozenset({raw.role})
            (role,) = raw.execute("select to_regrole(quote_ident(%s))::oid::text", [self._user]).fetchone()
            return frozenset({role} if role else ())

    def recover(self) -> list[PreparedBranch]:
        """The prepared branches of the whole cluster, as pg_prepared_xacts shows them to every role."""
        with closing(self._driver.connect()) as raw:
            system = raw.identity.partition("/")[0]
            rows = raw.execute(_PREPARED).fetchall()
            encoding = raw.info.encoding
        found = []
        for gid, age, owner_bytes, roles, database_bytes, oid in rows:
            xid = parse(gid)
            if xid is not None:
                owner, database = (name and name.decode(encoding, "replace") for name in (owner_bytes, database_bytes))
                own = owner in self._owners or (self._user is None and raw.role in (roles or ()))
                compared = None if own else frozenset(roles or ())
                elsewhere = "" if database is None else f"{system}/{oid}"
                found.append(PreparedBranch(xid, age, owner, compared, elsewhere, database or ""))
        return found

    def slots(self) -> PreparedSlots:
        """The prepared slots of the whole cluster."""
        with closing(self._driver.connect()) as raw:
            return PreparedSlots(*raw.execute(SLOTS).fetchone())

    def phase_two(self) -> PhaseTwoConnection:
        """Ends many branches over one connection. Used by one thread at a time; closed with the last answer."""
        return PhaseTwoConnection(self._driver, level=logging.INFO, failures=self._failures)

    def commit(self, record: BranchRecord) -> BranchOutcome:
        """COMMIT PREPARED. The outcome of an absent branch is told by its evidence; LOST is absent without any."""
        branch = self.phase_two().branch(record)
        branch.start_commit()
        return branch.await_commit()

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        """ROLLBACK PREPARED. LOST is absent without evidence: gone for good only if a later listing lacks it, too."""
        branch = self.phase_two().branch(record)
        branch.start_rollback()
        return branch.await_rollback()

    def why_not(self, record: BranchRecord) -> str:
        """The reason why a branch's last commit or rollback was UNKNOWN; empty where it was not."""
        return self._failures.get(record.xid, "")
