"""Which advisory locks on a sql log's server are leases: those of sessions whose role may write the log's registry.

Anybody who may connect can take any advisory lock, and the key of a lease can be read from the names of its branches. A
lock without a session belongs to a prepared transaction, and proves no living process. A shared lock was taken by an
earlier txpool, which tested leases by locking. This query takes no lock, so that tests at the same time do not disturb
each other.
"""

from __future__ import annotations

from typing import LiteralString

#: A CTE of the keys of such locks. A lease is taken before its incarnation's name is published: so a query that finds
#: the name finds the lease's session, too. Roles are those of the login, which SET ROLE does not change.
HELD_LEASES: LiteralString = """held(lease) AS MATERIALIZED (
    SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND EXISTS (SELECT FROM pg_roles r WHERE pg_has_role(s.usesysid, r.oid, 'MEMBER')
            AND has_any_column_privilege(r.oid, 'txpool_incarnations'::regclass::oid, 'INSERT, UPDATE')))"""
