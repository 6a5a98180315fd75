"""The decision log in a PostgreSQL database, shared by coordinators on many hosts, each node under a name of its own.

A fence and a decision of one incarnation are ordered by the lock on its row. The decision takes it FOR SHARE in the
very statement that inserts, and the fence updates the row: whoever comes second waits for the first to be durable,
and then looks at the row again, not at its snapshot. An abort record has the decision's key: the unique index makes
either wait for the other. PostgreSQL shows no commit before it is on disk, and writes an update that changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any, Final

import psycopg

from txpool import failpoints
from txpool.drivers.libpq import Session, ends_session
from txpool.errors import LogError, LogUnknown, PoolClosed, PoolTimeout
from txpool.log import forks
from txpool.log.base import Decision, Heuristic, Life, decode, encode
from txpool.log.lease import Lease, key_of
from txpool.log.server import LogServer, Raw
from txpool.pool import Pool
from txpool.resources.base import BranchRecord, Refused, Settled
from txpool.secret import Secret
from txpool.xid import new_incarnation, split_gtrid

#: As `nodes`: all that share the log.
EVERY_NODE: Final = "*"

_CONNECTIONS = 10  # that decide at the same time; the server lets them share a flush
_FORGOTTEN = 100  # decisions that are forgotten in one round trip

_RECORD = """INSERT INTO txpool_decisions (gtrid, branches, made) SELECT %s, %s, %s FROM txpool_incarnations
    WHERE name = %s AND fenced = 0 FOR SHARE ON CONFLICT DO NOTHING"""
_ABORT = """INSERT INTO txpool_decisions AS met (gtrid, branches, made) VALUES (%s, NULL, %s)
    ON CONFLICT (gtrid) DO UPDATE SET made = met.made RETURNING branches IS NULL"""
_KEPT = "SELECT branches IS NULL FROM txpool_decisions WHERE gtrid = %s"
_FORGET = """WITH pointers AS (DELETE FROM txpool_pointers WHERE gtrid = ANY(%(gtrids)s))
    DELETE FROM txpool_decisions WHERE gtrid = ANY(%(gtrids)s) AND branches IS NOT NULL"""
_PURGE = """WITH pointers AS (DELETE FROM txpool_pointers WHERE gtrid = ANY(%(gtrids)s)),
    marks AS (DELETE FROM txpool_finished WHERE gtrid = ANY(%(gtrids)s))
    DELETE FROM txpool_decisions WHERE gtrid = ANY(%(gtrids)s)"""
_POINT = """INSERT INTO txpool_pointers AS met (gtrid, datasource) VALUES (%s, %s)
    ON CONFLICT (gtrid) DO UPDATE SET datasource = met.datasource RETURNING datasource"""
_UNHOLD = "DELETE FROM txpool_decisions WHERE gtrid = %s"
_FINISH = """INSERT INTO txpool_finished (gtrid) VALUES (%s)
    ON CONFLICT (gtrid) DO UPDATE SET gtrid = excluded.gtrid"""
_PUBLISH = """WITH old AS (UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %s)
    INSERT INTO txpool_incarnations (name, node, lease) VALUES (%s, %s, %s)"""
_FENCE = """UPDATE txpool_incarnations SET fenced = fenced + 1
    WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING fenced"""
# Shared, so that two that look at once do not take each other for the owner; held until the statement's end.
_INCARNATIONS = """SELECT name, fenced, fenced = 0 AND NOT pg_try_advisory_xact_lock_shared(lease)
    FROM txpool_incarnations WHERE %(every)s OR node = ANY(%(nodes)s)"""
_NOTE = """INSERT INTO txpool_heuristics (gtrid, bqual, datasource, decided, ended, noted)
    VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"""
_HEURISTICS = "SELECT gtrid, bqual, datasource, decided, ended, noted FROM txpool_heuristics ORDER BY gtrid, bqual"


class SqlLog:
    """A DecisionLog in a PostgreSQL database. Thread-safe; a forked child goes on with an incarnation of its own.

    `incarnations` and `fence` know those of `nodes` alone: this node's own, unless others are listed, or all by "*".
    Errors: LogError where nothing was written, LogUnknown where that is not known.
    """

    def __init__(
        self,
        url: str,
        *,
        node: str,
        create: bool = False,
        nodes: Collection[str] | None = None,
        user: str | None = None,
        password: Secret | None = None,
    ) -> None:
        self._node = node
        asked = (node,) if nodes is None else tuple(nodes)
        self._asked = {"every": EVERY_NODE in asked, "nodes": list(asked)}
        self._server = LogServer(url, user=user, password=password)
        self._name = self._server.name
        self._pool: Pool[Raw] = Pool(self._server, name=self._name, max_size=_CONNECTIONS)
        self._forgotten: deque[str] = deque()
        self._fenced = ""  # the own incarnation's name, once it was found fenced
        self._quiet = False
        if create:
            with self._failing():
                self._server.create()
        with self._session():
            pass  # it is there, and it is the right one
        with forks.opening(self):
            self._birth = threading.Lock()
            self._own: Lease | None = None

    @property
    def node(self) -> str:
        return self._node

    @property
    def incarnation(self) -> str:
        own = self._own
        if own is None or self._stale(own):
            with self._birth:
                own = self._own
                if own is None or self._stale(own):
                    own = self._register(own)
        return own.name

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        incarnation = split_gtrid(gtrid).incarnation
        row = gtrid, encode(branches), time.time(), incarnation
        refused = f"{gtrid} was not decided, and rolls back: "
        if failpoints.armed:
            failpoints.hit("log.record")
        try:
            with self._session() as raw:
                if raw.execute(_RECORD, row, prepare=True).rowcount == 0:
                    kept = _kept(raw, gtrid)
                    if kept is Settled.COMMITTED:
                        raise _Answer(LogError(f"{gtrid} is decided already, and commits"))
                    raise _Answer(Refused(refused + self._why(kept, incarnation)))
        except LogUnknown:
            raise
        except LogError as failure:
            raise Refused(f"{refused}{failure}") from failure
        if failpoints.armed:
            failpoints.hit("log.recorded")
