"""The decision log in a database, shared by coordinators on many hosts, each node under a name of its own.

A fence and a decision of one incarnation are ordered by the lock on its row. The decision takes it FOR SHARE in the
statement that inserts, and the fence updates the row: the second one waits until the first is durable, and then reads
the row as it is now, not as in its snapshot. An abort record has the decision's key: the unique index makes either wait
for the other. The SQL of each database is in its own folder, as a `LogServer` with its `Statements`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from txpool import failpoints, loops
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.locks import Lock
from txpool.log import forks
from txpool.log.base import Decision, Heuristic, IncarnationState, resolution_of
from txpool.log.decisions import DecisionRecords, decisions_in, last_resources_in, pages
from txpool.log.formats import FORMAT
from txpool.log.locations import INCARNATION, LocationNotes
from txpool.log.side_records import SqlSideRecords
from txpool.log.sql.lease import Lease
from txpool.log.sql.server import log_server
from txpool.log.sql.sessions import Sessions
from txpool.log.sql.statements import Script
from txpool.log.timeouts import TimeoutNotes
from txpool.process.finishing import plural
from txpool.resources.base import Refused, Resolution
from txpool.xid import new_incarnation, split_gtrid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

logger = logging.getLogger("txpool")

#: For `nodes`: all that share the log.
EVERY_NODE: Final = "*"

_FORGET_BATCH = 100  # how many decisions are forgotten in one round trip

_RESOLUTION: Final[Script] = ("SELECT substr(branches, 1, 1) FROM txpool_decisions WHERE gtrid = %(gtrid)s",)
_NOTES: Final[Script] = ("SELECT gtrid, branches FROM txpool_decisions WHERE substr(branches, 1, 1) = '{'",)
_DELETE_NOTE: Final[Script] = ("DELETE FROM txpool_decisions WHERE gtrid = %(gtrid)s AND substr(branches, 1, 1) = '{'",)
_ABORT_NOTED: Final[Script] = (
    "UPDATE txpool_decisions SET branches = NULL WHERE gtrid = %(gtrid)s AND substr(branches, 1, 1) = '{'",
)
_DELETE_DECISION: Final[Script] = ("DELETE FROM txpool_decisions WHERE gtrid = %(gtrid)s",)
_DECISIONS: Final[Script] = (
    """SELECT gtrid, branches, made FROM txpool_decisions WHERE gtrid > %(gtrid)s AND branches IS NOT NULL
    ORDER BY gtrid LIMIT %(size)s""",
)
_ABORTED: Final[Script] = ("SELECT gtrid FROM txpool_decisions WHERE branches IS NULL",)
_FINISHED: Final[Script] = ("SELECT gtrid FROM txpool_finished",)
_POINTERS: Final[Script] = ("SELECT gtrid, datasource FROM txpool_pointers",)
_IS_FENCED: Final[Script] = (
    """SELECT 1 FROM txpool_incarnations WHERE name = %(name)s AND fenced > 0
    UNION ALL SELECT 1 FROM txpool_expired WHERE name = %(name)s""",
)
_NODES: Final[Script] = ("SELECT node FROM txpool_incarnations UNION SELECT node FROM txpool_expired",)
_DISMISS: Final[Script] = (
    "DELETE FROM txpool_heuristics WHERE gtrid = %(gtrid)s AND bqual = coalesce(%(bqual)s, bqual)",
)
_HEURISTICS: Final[Script] = (
    "SELECT gtrid, bqual, datasource, decided, ended, noted FROM txpool_heuristics ORDER BY gtrid, bqual",
)


class _Kept(Exception):
    """The note of a last resource keeps its place: the transaction that would replace it rolls back."""


class SqlLog(DecisionRecords, SqlSideRecords, LocationNotes, TimeoutNotes):
    """A DecisionLog in a database on a server. Thread-safe; a forked child goes on with an incarnation of its own.

    `incarnations` and `fence` know only those of `nodes`: this node's own, unless others are listed, or all by "*".
    Waiting for another's write for longer than `lock_timeout` (seconds) is a LogError.
    Errors: LogError if nothing was written, LogUnknown if that is not known.
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
        ours = (node,) if nodes is None else tuple(nodes)
        self._listed_nodes = frozenset(ours) - {EVERY_NODE} or frozenset({node})
        self._node_filter = {"every": EVERY_NODE in ours, "nodes": list(ours)}
        self._server = log_server(url, user=user, password=password, lock_timeout=lock_timeout)
        self._statements = self._server.statements
        self._name = self._server.name
        self._sessions = Sessions(self._server)
        self._do_durably = self._sessions.use
        self._forgotten: deque[str] = deque()
        self._fenced_name = ""  # our own incarnation's name, once a write was refused since it is fenced
        self._paused = False
        self._noted = set()
        self._timeouts = {}
        if create:
            with self._sessions.connecting():
                self._server.create()
        self._sessions.use(lambda _: None)  # opening a connection verifies the log
        with forks.opening(self):
            self._registering = Lock()
            self._current: Lease | None = None

    @property
    def node(self) -> str:
        return self._node

    @property
    def incarnation(self) -> str:
        current = self._current
        if current is None or self._must_register(current):
            if loops.used and (call := loops.current()) is not None:  # no lock is held while a task waits
                return call.in_thread(lambda: self.incarnation)
            with self._registering:
                current = self._current
                if current is None or self._must_register(current):
                    current = self._register(current)
        return current.name

    @property
    def every_node(self) -> bool:
        return bool(self._node_filter["every"])

    def nodes(self) -> frozenset[str]:
        if not self.every_node:
            return self._listed_nodes
        registered = (node for (node,) in self._sessions.read(_NODES))
        # An adopted log has the notes of nodes that it has no incarnation of.
        return self._listed_nodes.union(registered, self.noted_nodes())

    def abort(self, gtrid: str) -> Resolution:
        if failpoints.armed:
            failpoints.hit("log.abort")
        ((first,),) = self._sessions.run(self._statements.abort, {"gtrid": gtrid, "now": time.time()})
        return resolution_of(first)

    def abort_noted(self, gtrid: str) -> Resolution:
        self._sessions.run(_ABORT_NOTED, {"gtrid": gtrid})
        return self.abort(gtrid)

    def last_resources(self) -> dict[str, str]:
        return last_resources_in(self._sessions.read(_NOTES))

    def forget(self, gtrid: str) -> None:
        """Forget the decision with others, in one round trip. Never an error: recovery does it again."""
        self._forgotten.append(gtrid)
        if len(self._forgotten) >= _FORGET_BATCH:
            with suppress(LogError):  # the next batch includes it
                self.flush()

    def flush(self) -> None:
        """Make durable what was lazily forgotten."""
        gtrids: list[str] = []
        with suppress(IndexError):
            gtrids.extend(iter(self._forgotten.popleft, None))
        if gtrids:
            try:
                self._sessions.run(self._statements.forget, {"gtrids": gtrids, "joined": " ".join(gtrids)})
            except BaseException:
                self._forgotten.extend(gtrids)
                raise

    def point(self, gtrid: str, datasource: str) -> None:
        error = self._sessions.use(self._point, gtrid, split_gtrid(gtrid).incarnation, datasource)
        if error is not None:
            raise error

    def fence(self, incarnation: str) -> None:
        parameters = self._node_filter | {"name": incarnation}
        # An expired incarnation is moved back; if another process has just done so, the second fence finds it.
        fence, revive = self._statements.fence, self._statements.revive
        if not any(self._sessions.run(script, parameters) for script in (fence, revive, fence)):
            raise LogError(
                f"incarnation {incarnation} was never registered in {self._name}, or is of a node that is not ours to "
                f"recover: its branches are left alone"
            )

    def is_fenced(self, incarnation: str) -> bool:
        return bool(self._sessions.read(_IS_FENCED, {"name": incarnation}))

    def finish(self, gtrid: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.finish")
        self._sessions.run(self._statements.finish, {"gtrid": gtrid})

    def finished(self) -> set[str]:
        return {gtrid for (gtrid,) in self._sessions.read(_FINISHED)}

    def decisions(self) -> Mapping[str, Decision]:
        return decisions_in(pages(self._decisions_after), self._name)

    def _decisions_after(self, gtrid: str, size: int) -> list[tuple[str, str, float]]:
        return self._sessions.read(_DECISIONS, {"gtrid": gtrid, "size": size})

    def aborted(self) -> set[str]:
        return {gtrid for (gtrid,) in self._sessions.read(_ABORTED)}

    def pointers(self) -> dict[str, str]:
        return dict(self._sessions.read(_POINTERS))

    def incarnations(self) -> dict[str, IncarnationState]:
        """Every incarnation that our nodes have registered, with its state tested now."""
        rows = self._sessions.read(self._statements.incarnations, self._node_filter)
        return {name: _state(fenced, bool(held)) for name, fenced, held in rows}

    def record_heuristic(self, *heuristics: Heuristic) -> None:
        for each in heuristics:
            self._sessions.run(self._statements.record_heuristic, asdict(each))

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(*row) for row in self._sessions.read(_HEURISTICS)]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        self._sessions.run(_DISMISS, {"gtrid": gtrid, "bqual": bqual})

    def purge(self, gtrids: Iterable[str]) -> None:
        self._sessions.run(self._statements.purge, {"gtrids": list(gtrids)})

    def close(self) -> None:
        with self._registering:
            try:
                self.flush()
            except LogError as error:
                count = plural(len(self._forgotten), "finished decision")
                logger.warning("%s: deleting %s is left to recovery: %s", self._name, count, error)
            finally:
                self._sessions.close()
                if self._current is not None:
                    self._current.release()
                    self._current = None

    def before_fork(self) -> None:
        """Wait until no lease is being taken, since the child would keep a copy of its socket for ever."""
        self._paused = self._registering.acquire(timeout=forks.WAIT)

    def after_fork_in_parent(self) -> None:
        if self._paused:
            self._registering.release()

    def after_fork_in_child(self) -> None:
        self._registering = Lock()
        self._forgotten = deque()
        if self._current is not None:
            self._current.disown()
            self._current = None

    def __repr__(self) -> str:
        return f"<SqlLog of node {self._node}: {self._name}>"

    def _must_register(self, current: Lease) -> bool:
        return current.name == self._fenced_name or not current.held()

    def _register(self, old: Lease | None) -> Lease:
        """Become a new incarnation: take its lease, then publish its name durably, and fence the old one."""
        with self._sessions.connecting():
            new = Lease(self._server, self._node, new_incarnation())
        try:
            row = new.row | {"name": new.name, "node": self._node, "old": old.name if old else None}
            row |= {"kind": INCARNATION, "format": FORMAT, "now": time.time()}
            self._sessions.run(self._statements.publish, row)
        except BaseException:
            new.close()  # if the name was published after all, it is dead, and may be fenced
            raise
        # Location notes may have been retired since the old incarnation was fenced.
        self._current, self._noted = new, set()
        if old is not None:
            old.close()
        return new

    def _decide(self, raw: RawConnection, gtrid: str, incarnation: str, branches: str) -> Exception | None:
        if self._server.insert(raw, gtrid, incarnation, branches):
            return None
        resolution = self._resolution(raw, gtrid)
        if resolution is Resolution.COMMITTED:
            return LogError(f"{gtrid} is decided already, and commits")
        if resolution is Resolution.NOTED and self._replace_note(raw, gtrid, incarnation, branches):
            return None
        return Refused(f"{gtrid} was not decided, and rolls back: {self._refusal(raw, resolution, incarnation)}")

    def _point(self, raw: RawConnection, gtrid: str, incarnation: str, datasource: str) -> Exception | None:
        refused = f"{gtrid} cannot be decided by {datasource}, and rolls back: "
        server, key = self._server, {"gtrid": gtrid}
        # Meanwhile a row holds the decision's key, under the decision's conditions: so an abort record waits for this,
        # or is found by it.
        with server.transaction(raw):
            if not server.insert(raw, gtrid, incarnation, ""):
                return Refused(refused + self._refusal(raw, self._resolution(raw, gtrid), incarnation))
            ((decider,),) = server.execute(raw, self._statements.point, key | {"datasource": datasource})
            server.execute(raw, _DELETE_DECISION, key)
        return None if decider == datasource else Refused(f"{refused}{decider} decides it")

    def _replace_note(self, raw: RawConnection, gtrid: str, incarnation: str, branches: str) -> bool:
        """Whether the note of a last resource has given its place to the decision: not if recovery has fenced."""
        try:
            with self._server.transaction(raw):
                self._server.execute(raw, _DELETE_NOTE, {"gtrid": gtrid})
                if not self._server.insert(raw, gtrid, incarnation, branches):
                    raise _Kept
        except _Kept:
            return False
        return True

    def _resolution(self, raw: RawConnection, gtrid: str) -> Resolution | None:
        """How the gtrid stands in the log; None if nothing is kept under its key."""
        rows = self._server.execute(raw, _RESOLUTION, {"gtrid": gtrid})
        return resolution_of(rows[0][0]) if rows else None

    def _refusal(self, raw: RawConnection, resolution: Resolution | None, incarnation: str) -> str:
        """Why the store has refused. Remembers it if our own incarnation is fenced."""
        if resolution not in (None, Resolution.NOTED):
            return f"the log has it as {resolution.value}"
        why_not = self._server.why_not_durable(raw)
        if why_not:
            return why_not
        current = self._current
        if current is not None and current.name == incarnation:
            self._fenced_name = incarnation
        return f"incarnation {incarnation} was fenced by recovery, or is not registered in {self._name}"


def _state(fenced: int, held: bool) -> IncarnationState:
    if fenced:
        return IncarnationState.FENCED
    return IncarnationState.ALIVE if held else IncarnationState.DEAD
