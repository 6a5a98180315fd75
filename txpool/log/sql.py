"""The decision log in a PostgreSQL database, shared by coordinators on many hosts, each node under a name of its own.

A fence and a decision of one incarnation are ordered by the lock on its row. The decision takes it FOR SHARE in the
very statement that inserts, and the fence updates the row: whoever comes second waits for the first to be durable,
and then looks at the row again, not at its snapshot. An abort record has the decision's key: the unique index makes
either wait for the other. PostgreSQL shows no commit before it is on disk, and writes an update that changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import astuple
from typing import Final

from txpool import failpoints
from txpool.config.secrets import Secret
from txpool.errors import LogError, LogUnknown
from txpool.finishing import plural
from txpool.log import forks
from txpool.log.base import Decision, Heuristic, IncarnationState
from txpool.log.formats import FORMAT
from txpool.log.holders import HELD
from txpool.log.lease import Lease, key_of
from txpool.log.locations import INCARNATION, LocationNotes
from txpool.log.server import LogConnection, LogServer
from txpool.log.sessions import Sessions
from txpool.log.side_records import SqlSideRecords
from txpool.resources.base import BranchRecord, Refused, Resolution, decode, encode
from txpool.xid import new_incarnation, split_gtrid

logger = logging.getLogger("txpool")

#: As `nodes`: all that share the log.
EVERY_NODE: Final = "*"

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
_DELETE_DECISION = "DELETE FROM txpool_decisions WHERE gtrid = %s"
_FINISH = """INSERT INTO txpool_finished (gtrid) VALUES (%s)
    ON CONFLICT (gtrid) DO UPDATE SET gtrid = excluded.gtrid"""
_PUBLISH = """WITH old AS (UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %(old)s),
    noting AS (INSERT INTO txpool_memos (kind, name, text, made) VALUES (%(kind)s, %(name)s, %(format)s, %(now)s))
    INSERT INTO txpool_incarnations (name, node, lease) VALUES (%(name)s, %(node)s, %(lease)s)"""
_FENCE = """UPDATE txpool_incarnations SET fenced = fenced + 1
    WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING fenced"""
_REVIVE = """WITH back AS (DELETE FROM txpool_expired
        WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING name, node, lease)
    INSERT INTO txpool_incarnations (name, node, lease, fenced) SELECT name, node, lease, 1 FROM back
    RETURNING fenced"""
_IS_FENCED = """SELECT 1 FROM txpool_incarnations WHERE name = %(name)s AND fenced > 0
    UNION ALL SELECT 1 FROM txpool_expired WHERE name = %(name)s"""
_INCARNATIONS: Final = f"""WITH {HELD} SELECT name, fenced, fenced = 0 AND lease IN (TABLE held)
    FROM txpool_incarnations WHERE %(every)s OR node = ANY(%(nodes)s)"""  # noqa: S608 - a constant
_NODES = "SELECT node FROM txpool_incarnations UNION SELECT node FROM txpool_expired"
_NOTE = """INSERT INTO txpool_heuristics (gtrid, bqual, datasource, decided, ended, noted)
    VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"""
_DISMISS = "DELETE FROM txpool_heuristics WHERE gtrid = %s AND bqual = coalesce(%s, bqual)"
_HEURISTICS = "SELECT gtrid, bqual, datasource, decided, ended, noted FROM txpool_heuristics ORDER BY gtrid, bqual"


class SqlLog(SqlSideRecords, LocationNotes):
    """A DecisionLog in a PostgreSQL database. Thread-safe; a forked child goes on with an incarnation of its own.

    `incarnations` and `fence` know those of `nodes` alone: this node's own, unless others are listed, or all by "*".
    What waits for another's write longer than `lock_timeout` (seconds) is a LogError: not known now.
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
        lock_timeout: float = 10.0,
    ) -> None:
        self._node = node
        asked = (node,) if nodes is None else tuple(nodes)
        self._named = frozenset(asked) - {EVERY_NODE} or frozenset({node})
        self._asked = {"every": EVERY_NODE in asked, "nodes": list(asked)}
        self._server = LogServer(url, user=user, password=password, lock_timeout=lock_timeout)
        self._name = self._server.name
        self._sessions = Sessions(self._server)
        self._forgotten: deque[str] = deque()
        self._fenced = ""  # the own incarnation's name, once it was found fenced
        self._quiet = False
        self._noted = set()
        if create:
            with self._sessions.connecting():
                self._server.create()
        with self._sessions.session():
            pass  # it is there, and it is the right one
        with forks.opening(self):
            self._birth = threading.Lock()
            self._current: Lease | None = None

    @property
    def node(self) -> str:
        return self._node

    @property
    def incarnation(self) -> str:
        own = self._current
        if own is None or self._stale(own):
            with self._birth:
                own = self._current
                if own is None or self._stale(own):
                    own = self._register(own)
        return own.name

    def nodes(self) -> frozenset[str]:
        found = self._sessions.read(_NODES) if self._asked["every"] else []
        return self._named.union(node for (node,) in found)

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        row = gtrid, encode(branches), time.time(), split_gtrid(gtrid).incarnation
        if failpoints.armed:
            failpoints.hit("log.record")
        try:
            with self._sessions.session() as raw:
                made = raw.execute(_RECORD, row, prepare=True).rowcount == 1
                kept = None if made else _kept(raw, gtrid)
        except LogUnknown:
            raise
        except LogError as failure:
            raise Refused(f"{gtrid} was not decided, and rolls back: {failure}") from failure
        if kept is Resolution.COMMITTED:
            raise LogError(f"{gtrid} is decided already, and commits")
        if not made:
            raise Refused(f"{gtrid} was not decided, and rolls back: {self._refusal(kept, gtrid)}")
        if failpoints.armed:
            failpoints.hit("log.recorded")

    def abort(self, gtrid: str) -> Resolution:
        if failpoints.armed:
            failpoints.hit("log.abort")
        ((aborted,),) = self._sessions.run(_ABORT, (gtrid, time.time()))
        return Resolution.ABORTED if aborted else Resolution.COMMITTED

    def forget(self, gtrid: str) -> None:
        """Forget the decision with others, in one round trip; never an error: recovery does it again."""
        self._forgotten.append(gtrid)
        if len(self._forgotten) >= _FORGOTTEN:
            with suppress(LogError):  # it goes with the next batch
                self.flush()

    def flush(self) -> None:
        """Make durable what was lazily forgotten."""
        gtrids: list[str] = []
        with suppress(IndexError):
            gtrids.extend(iter(self._forgotten.popleft, None))
        if gtrids:
            try:
                self._sessions.run(_FORGET, {"gtrids": gtrids})
            except BaseException:
                self._forgotten.extend(gtrids)
                raise

    def point(self, gtrid: str, datasource: str) -> None:
        held = gtrid, None, time.time(), split_gtrid(gtrid).incarnation
        refused = f"{gtrid} cannot be decided by {datasource}, and rolls back: "
        decider, kept = "", None
        # The decision's key is held meanwhile, under the decision's conditions: an abort record waits, or is met.
        with self._sessions.session() as raw, raw.transaction():
            if raw.execute(_RECORD, held).rowcount == 1:
                (decider,) = raw.execute(_POINT, (gtrid, datasource)).fetchone() or ("",)
                raw.execute(_DELETE_DECISION, (gtrid,))
            else:
                kept = _kept(raw, gtrid)
        if not decider:
            raise Refused(refused + self._refusal(kept, gtrid))
        if decider != datasource:
            raise Refused(f"{refused}{decider} decides it")

    def fence(self, incarnation: str) -> None:
        asked = self._asked | {"name": incarnation}
        # One that has expired is brought back; who comes second to that finds it where it was.
        if not any(self._sessions.run(statement, asked) for statement in (_FENCE, _REVIVE, _FENCE)):
            raise LogError(
                f"incarnation {incarnation} was never registered in {self._name}, or is of a node that is not ours to "
                f"recover: its branches are left alone"
            )

    def is_fenced(self, incarnation: str) -> bool:
        return bool(self._sessions.read(_IS_FENCED, {"name": incarnation}))

    def finish(self, gtrid: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.finish")
        self._sessions.run(_FINISH, (gtrid,))

    def finished(self) -> set[str]:
        return {gtrid for (gtrid,) in self._sessions.read("SELECT gtrid FROM txpool_finished")}

    def decisions(self) -> dict[str, Decision]:
        rows = self._sessions.read("SELECT gtrid, branches, made FROM txpool_decisions WHERE branches IS NOT NULL")
        try:
            return {gtrid: Decision(gtrid, decode(gtrid, text), made) for gtrid, text, made in rows}
        except ValueError as error:
            raise LogError(f"{self._name}: {error}. Nothing was done") from error

    def aborted(self) -> set[str]:
        return {gtrid for (gtrid,) in self._sessions.read("SELECT gtrid FROM txpool_decisions WHERE branches IS NULL")}

    def pointers(self) -> dict[str, str]:
        return dict(self._sessions.read("SELECT gtrid, datasource FROM txpool_pointers"))

    def incarnations(self) -> dict[str, IncarnationState]:
        """Every incarnation that the nodes asked for have ever registered, with its life tested now."""
        rows = self._sessions.read(_INCARNATIONS, self._asked)
        return {name: _state(fenced, held) for name, fenced, held in rows}

    def record_heuristic(self, heuristic: Heuristic) -> None:
        self._sessions.run(_NOTE, astuple(heuristic))

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(*row) for row in self._sessions.read(_HEURISTICS)]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        self._sessions.run(_DISMISS, (gtrid, bqual))

    def purge(self, gtrids: Iterable[str]) -> None:
        self._sessions.run(_PURGE, {"gtrids": list(gtrids)})

    def close(self) -> None:
        with self._birth:
            try:
                self.flush()
            except LogError as error:
                left = plural(len(self._forgotten), "finished decision")
                logger.warning("%s: deleting %s is left to recovery: %s", self._name, left, error)
            finally:
                self._sessions.close()
                if self._current is not None:
                    self._current.release()
                    self._current = None

    def before_fork(self) -> None:
        """Let no lease be on its way, since the child would keep a copy of its socket that nobody knows of."""
        self._quiet = self._birth.acquire(timeout=forks.WAIT)

    def after_fork_in_parent(self) -> None:
        if self._quiet:
            self._birth.release()

    def after_fork_in_child(self) -> None:
        self._birth = threading.Lock()
        self._forgotten = deque()
        if self._current is not None:
            self._current.disown()
            self._current = None

    def __repr__(self) -> str:
        return f"<SqlLog of node {self._node}: {self._name}>"

    def _stale(self, own: Lease) -> bool:
        return own.name == self._fenced or not own.held()

    def _register(self, old: Lease | None) -> Lease:
        """Take a new name: its lease first, then durably the name, together with the fence of the old one."""
        with self._sessions.connecting():
            own = Lease(self._server, self._node, new_incarnation())
        try:
            row = {"name": own.name, "node": self._node, "lease": key_of(own.name), "old": old.name if old else None}
            self._sessions.run(_PUBLISH, row | {"kind": INCARNATION, "format": FORMAT, "now": time.time()})
        except BaseException:
            own.close()  # if the name was published after all, it is dead, and may be fenced
            raise
        # What was noted under the former name may have been retired since that was fenced.
        self._current, self._noted = own, set()
        if old is not None:
            old.close()
        return own

    def _refusal(self, kept: Resolution | None, gtrid: str) -> str:
        """Why the store has refused; takes note where the own incarnation was fenced."""
        if kept is not None:
            return f"the log has it as {kept.value}"
        incarnation = split_gtrid(gtrid).incarnation
        own = self._current
        if own is not None and own.name == incarnation:
            self._fenced = incarnation
        return f"incarnation {incarnation} was fenced by recovery, or is not registered in {self._name}"


def _kept(raw: LogConnection, gtrid: str) -> Resolution | None:
    row = raw.execute(_KEPT, (gtrid,)).fetchone()
    if row is None:
        return None
    return Resolution.ABORTED if row[0] else Resolution.COMMITTED


def _state(fenced: int, held: bool) -> IncarnationState:
    if fenced:
        return IncarnationState.FENCED
    return IncarnationState.ALIVE if held else IncarnationState.DEAD
