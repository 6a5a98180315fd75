"""Which prepared transactions PostgreSQL's sessions wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from txpool.resources.driver.driver import Driver
from txpool.resources.postgresql.branches.lock_modes import conflict
from txpool.resources.postgresql.branches.recovery import PREPARED, branches_of
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.recovery_access import PreparedBranch

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

# A session may wait for another that waits itself, also as one that is before it in the queue. The locks of a prepared
# transaction have no pid; its lock on its own id shows to which prepared transaction they belong. Only gids with
# characters of txpool's are read: others may be invalid in this database's encoding.
HOLDERS = qualified(
    """
    with recursive waiting (first, pid) as (
        select asked.pid, asked.pid from unnest(%s::int[]) as asked (pid)
        union
        select w.first, blocking.pid
        from waiting w cross join lateral unnest(pg_blocking_pids(w.pid)) as blocking (pid)
        where blocking.pid <> 0
    ), locks as materialized (
        select pid, virtualtransaction as vxid, locktype, transactionid, mode, granted, row(locktype, database,
            relation, page, tuple, virtualxid, transactionid, classid, objid, objsubid) as tag
        from pg_locks
    )
    select w.first, p.gid, wanted.mode, held.mode
    from waiting w
    join locks wanted on wanted.pid = w.pid and not wanted.granted
    join locks held on held.tag = wanted.tag and held.granted and held.pid is null
    join locks own on own.vxid = held.vxid and own.pid is null and own.locktype = 'transactionid'
    join pg_prepared_xacts p on p.transaction = own.transactionid
    where starts_with(p.gid, 'txp1:') and substring(p.gid, '^[A-Za-z0-9_.:-]+$'::text) = p.gid
"""
)


#: The sessions that these wait for, directly.
_SESSIONS = qualified(
    """
    select asked.pid, blocking.pid
    from unnest(%s::int[]) as asked (pid) cross join lateral unnest(pg_blocking_pids(asked.pid)) as blocking (pid)
"""
)


class PostgreSQLLockHolders:
    """As `LockHolders`."""

    certain = True

    def __init__(self, settings: DataSourceSettings, driver: Driver) -> None:
        self._driver = driver
        self._owners = settings.prepared_owners

    def holders(self, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        pids = [raw.session_number for raw in waiting]
        with closing(self._driver.connect()) as raw:
            rows = raw.execute(HOLDERS, [pids]).fetchall()
            listed = raw.execute(PREPARED).fetchall() if rows else []
            encoding, timeline, system = raw.info.encoding, raw.timeline, raw.identity.partition("/")[0]
        branches = branches_of(
            listed, system=system, encoding=encoding, timeline=timeline, role=raw.role, owners=self._owners
        )
        return held_by(pids, rows, branches)

    def sessions(self, waiting: Sequence[Any]) -> list[list[int]]:
        pids = [raw.session_number for raw in waiting]
        with closing(self._driver.connect()) as raw:
            rows = raw.execute(_SESSIONS, [pids]).fetchall()
        return [[blocking for pid, blocking in rows if pid == asked] for asked in pids]


def held_by(
    pids: Sequence[int], rows: Iterable[tuple[Any, ...]], branches: Iterable[PreparedBranch]
) -> list[list[PreparedBranch]]:
    """For each session, the branches that it waits for, by the rows of HOLDERS."""
    ours = {branch.xid.joined: branch for branch in branches if branch.prepared_by(())}
    found = defaultdict[int, dict[str, PreparedBranch]](dict)
    for pid, gid, wanted, held in rows:
        if gid in ours and conflict(wanted, held):
            found[pid][gid] = ours[gid]
    return [list(found[pid].values()) for pid in pids]
