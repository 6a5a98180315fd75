"""Recovery's access to the prepared transactions of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import copy
from typing import Any

from txpool.resources.branches.recovery import EndsBranches
from txpool.resources.driver.driver import Driver
from txpool.resources.postgresql.branches.phase_two import PostgreSQLPhaseTwo
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.recovery_access import PreparedBranch, PreparedSlots
from txpool.xid import parse

#: How many prepared transactions a server can hold, and how many it holds.
SLOTS = qualified("select current_setting('max_prepared_transactions')::int, (select count(*) from pg_prepared_xacts)")


_ROLE = qualified("select to_regrole(quote_ident(%s))::oid::text")
# Membership is read from the catalogue: pg_has_role() says of a superuser that it is a member of every role. A member
# that cannot SET ROLE to the owner (SET FALSE, as a role with CREATEROLE is of roles that it creates) cannot have
# prepared as the owner. Names of other databases are in those databases' encodings, and may be invalid in this one: so
# only gids with characters of txpool's are read, and other names as bytes.
PREPARED = qualified(
    """
    with recursive prepared as (
        select * from pg_prepared_xacts
        where starts_with(gid, 'txp1:') and substring(gid, '^[A-Za-z0-9_.:-]+$'::text) = gid
    ), counted (owner, role) as (
        select distinct p.owner, r.oid from prepared p join pg_roles r on r.rolname = p.owner
        union select c.owner, m.member from counted c join pg_auth_members m on m.roleid = c.role
            where coalesce((to_jsonb(m) ->> 'set_option'::text)::boolean, true)
    ), roles as (
        select owner, array_agg(role::text) as roles from counted group by owner
    )
    select gid, transaction::text, (select pg_snapshot_xmax(pg_current_snapshot())::text),
        extract(epoch from (clock_timestamp() - prepared))::float8, textsend(p.owner::text), roles.roles,
        textsend(case when p.database <> current_database() then p.database::text end), d.oid::text
    from prepared p left join roles on roles.owner = p.owner left join pg_database d on d.datname = p.database
    order by p.prepared
"""
)
# There may be very many: a part of them is in memory at a time.
_DECLARE = f"declare txpool_prepared no scroll cursor for {PREPARED}"
_FETCH = "fetch 2000 from txpool_prepared"
_CLOSE = "close txpool_prepared"


class PostgreSQLBranchRecovery(EndsBranches):
    """Recovery's access to prepared transactions. Thread-safe: every method opens a connection and closes it, but for
    `phase_two`, whose branches share a few, and within `connected`.

    `user` is the login role of the datasource's own sessions, if these connections log in as another; empty if it
    is not known. `owners` are the roles of prepared.owners, whose branches are ours as well.
    """

    command = PostgreSQLPhaseTwo
    #: Within `connected`.
    _raw: Any = None

    def __init__(
        self, datasource: str, driver: Driver, *, user: str | None = None, owners: Collection[str] = ()
    ) -> None:
        super().__init__(driver)
        self._datasource = datasource
        self._user = user
        self._owners = owners

    @contextmanager
    def connected(self, raw: Any = None) -> Iterator[PostgreSQLBranchRecovery]:
        """The same over one connection, for one thread: over `raw`, which stays open, or one of its own."""
        access = copy(self)
        with closing(self._driver.connect()) if raw is None else nullcontext(raw) as access._raw:
            yield access

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        if self._raw is not None:
            yield self._raw
        else:
            with closing(self._driver.connect()) as raw:
                yield raw

    def identity(self) -> str:
        with self._connection() as raw:
            return str(raw.identity)

    def logins(self) -> frozenset[str]:
        with self._connection() as raw:
            if self._user is None:
                return frozenset({raw.role})
            (role,) = raw.execute(_ROLE, [self._user]).fetchone()
            return frozenset({role} if role else ())

    def recover(self) -> list[PreparedBranch]:
        """The prepared branches of the whole cluster, as pg_prepared_xacts shows them to every role."""
        return list(self.each_prepared())

    def each_prepared(self) -> Iterator[PreparedBranch]:
        """As `recover`, one after the other. The server lists all of them before the first."""
        with self._connection() as raw:
            system = raw.identity.partition("/")[0]
            encoding, timeline = raw.info.encoding, raw.timeline
            role = raw.role if self._user is None else None
            raw.execute(_DECLARE)
            while rows := raw.execute(_FETCH, prepare=False).fetchall():
                yield from branches_of(
                    rows, system=system, encoding=encoding, timeline=timeline, role=role, owners=self._owners
                )
            raw.execute(_CLOSE)

    def slots(self) -> PreparedSlots:
        """The prepared slots of the whole cluster."""
        with self._connection() as raw:
            return PreparedSlots(*raw.execute(SLOTS).fetchone())


def branches_of(
    rows: Iterable[Sequence[Any]],
    *,
    system: str,
    encoding: str,
    timeline: str,
    role: str | None,
    owners: Collection[str],
) -> list[PreparedBranch]:
    """The branches out of the rows of `PREPARED`; `role` is the listing session's, if it logs in as the datasource."""
    found = []
    for gid, transaction, following, age, owner_bytes, roles, database_bytes, oid in rows:
        xid = parse(gid)
        if xid is not None:
            owner, database = (name and name.decode(encoding, "replace") for name in (owner_bytes, database_bytes))
            own = owner in owners or (role is not None and role in (roles or ()))
            compared = None if own else frozenset(roles or ())
            elsewhere = "" if database is None else f"{system}/{oid}"
            evidence = {"xid": _whole_id(int(transaction), int(following)), "timeline": timeline}
            found.append(PreparedBranch(xid, age, owner, compared, elsewhere, database or "", evidence))
    return found


def _whole_id(transaction: int, following: int) -> str:
    """A transaction's id with its epoch, from its lower 32 bits and the whole id that the server gives out next."""
    behind = (following - transaction + 2**31) % 2**32 - 2**31  # it may be a little ahead of an older snapshot
    return str(following - behind)
