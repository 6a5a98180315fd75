"""Whose lock is a lease on a sql log's server: one that a session holds whose role may write the log's registry.

Anybody who may connect can take any advisory lock, and the key of a lease is in the names of its branches. A lock
without a session, as a prepared transaction holds it, tells of no process; a shared one is that of somebody who looked,
in a txpool that looked by locking. Nothing is locked here: whoever looks at the same time is not in the way.
"""

from __future__ import annotations

from typing import LiteralString

#: A CTE of the keys of such locks. What is read after a name was published finds the session that holds its lease:
#: that was there before. Roles are those of the login, which a SET ROLE leaves as they are. The types of
#: all arguments are exact: a function that fits better, in a schema of the search path, would say whose lock counts.
HELD: LiteralString = """held(lease) AS MATERIALIZED (
    SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND EXISTS (SELECT FROM pg_roles r WHERE pg_has_role(s.usesysid, r.oid, 'MEMBER')
            AND has_any_column_privilege(r.oid, 'txpool_incarnations'::regclass::oid, 'INSERT, UPDATE')))"""
