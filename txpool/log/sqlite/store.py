"""The embedded decision log: SQLite in WAL mode with `synchronous=FULL`, shared by the processes of one node.

A fence and a decision of one incarnation are ordered by the store: each is a conditional statement in a transaction
that holds SQLite's one write lock. To make a row durable again, `touched` or `fenced` is changed in it, since SQLite
writes nothing for an update that changes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path

from txpool import failpoints, loops
from txpool.errors import LogError
from txpool.locks import Lock
from txpool.log import forks
from txpool.log.base import Decision, Heuristic, IncarnationState, SideRecord, resolution_of
from txpool.log.decisions import DecisionRecords, decisions_in, last_resources_in, pages
from txpool.log.formats import FORMAT
from txpool.log.locations import INCARNATION, LocationNotes
from txpool.log.side_records import SqliteSideRecords
from txpool.log.sqlite import registry
from txpool.log.sqlite.folder import LogFolder
from txpool.log.sqlite.group import GroupCommit
from txpool.log.timeouts import TimeoutNotes
from txpool.resources.base import Refused, Resolution
from txpool.xid import new_incarnation, split_gtrid

_FORGET_BATCH = 1000  # how many decisions wait to be forgotten before that gets a transaction of its own

_FORGET = "DELETE FROM decisions WHERE gtrid = ? AND branches IS NOT NULL"
# With ON CONFLICT DO NOTHING a NULL would fail: for that SQLite keeps a journal of the statement. OR IGNORE needs none.
_RECORD = """INSERT OR IGNORE INTO decisions (gtrid, branches, made) SELECT ?, ?, ? FROM incarnations
    WHERE name = ? AND fenced = 0"""
_ABORT = """INSERT INTO decisions (gtrid, branches, made) VALUES (?, NULL, ?)
    ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1"""
_REPLACE_NOTE = """UPDATE decisions SET branches = ?, made = ? WHERE gtrid = ? AND substr(branches, 1, 1) = '{'
    AND EXISTS (SELECT 1 FROM incarnations WHERE name = ? AND fenced = 0)"""
_DROP_NOTE = "UPDATE decisions SET branches = NULL WHERE gtrid = ? AND substr(branches, 1, 1) = '{'"
_POINT = """INSERT INTO pointers (gtrid, datasource) SELECT :gtrid, :datasource FROM incarnations
    WHERE name = :incarnation AND fenced = 0 AND NOT EXISTS (SELECT 1 FROM decisions WHERE gtrid = :gtrid)
    ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1 WHERE datasource = excluded.datasource"""
_DECISIONS = """SELECT gtrid, branches, made FROM decisions WHERE gtrid > ? AND branches IS NOT NULL
    ORDER BY gtrid LIMIT ?"""
_IS_FENCED = """SELECT 1 FROM (SELECT name, fenced FROM incarnations UNION ALL SELECT name, 1 FROM expired)
    WHERE name = ? AND fenced > 0"""
_FINISH = """INSERT INTO finished (gtrid) VALUES (?) ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1"""
_RECORD_HEURISTIC = """INSERT OR IGNORE INTO heuristics (gtrid, bqual, datasource, decided, ended, noted)
    VALUES (?, ?, ?, ?, ?, ?)"""
_DISMISS = "DELETE FROM heuristics WHERE gtrid = ? AND bqual = coalesce(?, bqual)"
_HEURISTICS = "SELECT gtrid, bqual, datasource, decided, ended, noted FROM heuristics ORDER BY gtrid, bqual"


class SqliteLog(DecisionRecords, SqliteSideRecords, LocationNotes, TimeoutNotes):
    """A DecisionLog in a folder. Thread-safe; a forked child goes on with an incarnation of its own.

    Errors: LogError if nothing was written, LogUnknown if that is not known.
    """

    def __init__(self, path: str | Path, *, node: str, create: bool = False) -> None:
        self._node = node
        self._folder = LogFolder(Path(path))
        self._group = GroupCommit(
            f"the decision log {self._folder.path}",
            partial(self._folder.connect, node),
            self._folder.release_reserve,
            deferred=_FORGET,
        )
        self._do_durably = self._group.write
        self._registering = Lock()
        self._noted = set()
        self._timeouts = {}
        self._current: registry.IncarnationLock | None = None
        self._fenced_name = ""  # our own incarnation's name, once a write was refused since it is fenced
        self._paused = False
        with forks.opening(self):
            if create:
                self._folder.create(node)
            self._folder.check(node)

    @property
    def node(self) -> str:
        return self._node

    @property
    def commits(self) -> int:
        """How many transactions this object has made durable, each with one fsync."""
        return self._group.commits

    @property
    def every_node(self) -> bool:
        return False  # the folder is one node's alone

    @property
    def incarnation(self) -> str:
        current = self._current
        if current is None or current.name == self._fenced_name or self._group.poison:
            if loops.used and (call := loops.current()) is not None:  # no lock is held while a task waits
                return call.in_thread(lambda: self.incarnation)
            with self._registering:
                current = self._current
                if current is None or current.name == self._fenced_name or self._group.poison:
                    current = self._register(current)
        return current.name

    def nodes(self) -> frozenset[str]:
        return frozenset({self._node})

    def abort(self, gtrid: str) -> Resolution:
        if failpoints.armed:
            failpoints.hit("log.abort")
        return self._group.write(_abort, gtrid)

    def abort_noted(self, gtrid: str) -> Resolution:
        if failpoints.armed:
            failpoints.hit("log.abort")
        return self._group.write(_abort_noted, gtrid)

    def last_resources(self) -> dict[str, str]:
        return last_resources_in(self._read("SELECT gtrid, branches FROM decisions WHERE substr(branches, 1, 1) = '{'"))

    def forget(self, gtrid: str) -> None:
        """Forget the decision with a later write, without an fsync of its own. Never an error: recovery retries."""
        waiting = self._group.defer(gtrid)
        # Checked here, once for each write, where no caller waits for a decision: an open file can be written also
        # after it was moved.
        if waiting == 1 and not self._folder.is_in_place():
            self._group.abandon("the log was moved away or replaced while it was in use")
        elif waiting >= _FORGET_BATCH:
            with suppress(LogError):  # the next write that succeeds does it
                self.flush()

    def flush(self) -> None:
        """Make durable what was lazily forgotten."""
        self._group.write(lambda _: None)

    def point(self, gtrid: str, datasource: str) -> None:
        error = self._group.write(self._point, gtrid, split_gtrid(gtrid).incarnation, datasource)
        if error is not None:
            raise error

    def fence(self, incarnation: str) -> None:
        if not self._group.write(_fence, incarnation):
            raise LogError(
                f"incarnation {incarnation} was never registered in {self._folder.path}: it is another log's, and its "
                f"branches are left alone"
            )
        registry.remove(self._folder.incarnations, incarnation)

    def is_fenced(self, incarnation: str) -> bool:
        return bool(self._read(_IS_FENCED, incarnation))

    def finish(self, gtrid: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.finish")
        self._group.write(lambda db: db.execute(_FINISH, (gtrid,)))

    def finished(self) -> set[str]:
        return {gtrid for (gtrid,) in self._read("SELECT gtrid FROM finished")}

    def decisions(self) -> Mapping[str, Decision]:
        return decisions_in(pages(partial(self._read, _DECISIONS)), f"the decision log {self._folder.database}")

    def aborted(self) -> set[str]:
        return {gtrid for (gtrid,) in self._read("SELECT gtrid FROM decisions WHERE branches IS NULL")}

    def pointers(self) -> dict[str, str]:
        return dict(self._read("SELECT gtrid, datasource FROM pointers"))

    def incarnations(self) -> dict[str, IncarnationState]:
        rows = self._read("SELECT name, fenced FROM incarnations")
        return {name: self._state(name, fenced) for name, fenced in rows}

    def record_heuristic(self, *heuristics: Heuristic) -> None:
        rows = list(map(astuple, heuristics))
        self._group.write(lambda db: db.executemany(_RECORD_HEURISTIC, rows))

    def heuristics(self) -> list[Heuristic]:
        return [Heuristic(*row) for row in self._read(_HEURISTICS)]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        self._group.write(lambda db: db.execute(_DISMISS, (gtrid, bqual)))

    def purge(self, gtrids: Iterable[str]) -> None:
        self._group.write(_purge, [(gtrid,) for gtrid in gtrids])

    def close(self) -> None:
        with self._registering:
            try:
                self._group.close()
            finally:
                if self._current is not None:
                    self._current.release()
                    self._current = None

    def before_fork(self) -> None:
        """Wait until no thread is in SQLite or registers an incarnation, and keep it so while the process is copied."""
        self._paused = self._registering.acquire(timeout=forks.WAIT)
        if self._paused and not self._group.pause():
            self._registering.release()
            self._paused = False

    def after_fork_in_parent(self) -> None:
        if self._paused:
            self._group.resume()
            self._registering.release()

    def after_fork_in_child(self) -> None:
        self._registering = Lock()
        self._group.restart(self._paused)
        if self._current is not None:
            self._current.disown()
            self._current = None

    def _register(self, old: registry.IncarnationLock | None) -> registry.IncarnationLock:
        """Become a new incarnation: take its lock, then publish its name durably, and fence the old one."""
        new = registry.IncarnationLock(self._folder.incarnations, self._node, new_incarnation())
        try:
            self._group.write(_publish, new.name, old.name if old else None)
        except BaseException:
            new.discard()  # if the name was published after all, it is dead, and may be fenced
            raise
        # Location notes may have been retired since the old incarnation was fenced.
        self._current, self._noted, self._group.poison = new, set(), ""
        if old is not None:
            old.release()
            registry.remove(self._folder.incarnations, old.name)
        return new

    def _decide(self, db: sqlite3.Cursor, gtrid: str, incarnation: str, branches: str) -> Exception | None:
        poison, room = self._group.poison, self._folder.has_room()
        if room and not poison and db.execute(_RECORD, (gtrid, branches, time.time(), incarnation)).rowcount == 1:
            return None
        refused = f"{gtrid} was not decided, and rolls back: "
        if poison:
            return Refused(f"{refused}{poison}; a new incarnation may decide again")
        if not room:
            return Refused(f"{refused}the disk of {self._folder.path} is full")
        resolution = _resolution(db, gtrid)
        if resolution is Resolution.COMMITTED:
            return LogError(f"{gtrid} is decided already, and commits")
        if (
            resolution is Resolution.NOTED
            and db.execute(_REPLACE_NOTE, (branches, time.time(), gtrid, incarnation)).rowcount == 1
        ):
            return None
        return Refused(refused + self._refusal(resolution, incarnation))

    def _point(self, db: sqlite3.Cursor, gtrid: str, incarnation: str, datasource: str) -> Exception | None:
        refused = f"{gtrid} cannot be decided by {datasource}, and rolls back: "
        if self._group.poison:
            return Refused(f"{refused}{self._group.poison}; a new incarnation may decide again")
        values = {"gtrid": gtrid, "datasource": datasource, "incarnation": incarnation}
        if db.execute(_POINT, values).rowcount == 1:
            return None
        other = db.execute("SELECT datasource FROM pointers WHERE gtrid = ?", (gtrid,)).fetchone()
        if other is not None and other[0] != datasource:
            return Refused(f"{refused}{other[0]} decides it")
        return Refused(refused + self._refusal(_resolution(db, gtrid), incarnation))

    def _refusal(self, resolution: Resolution | None, incarnation: str) -> str:
        """Why the store has refused. Remembers it if our own incarnation is fenced."""
        if resolution not in (None, Resolution.NOTED):
            return f"the log has it as {resolution.value}"
        current = self._current
        if current is not None and current.name == incarnation:
            self._fenced_name = incarnation
        return f"incarnation {incarnation} was fenced by recovery, or is not registered in {self._folder.path}"

    def _state(self, name: str, fenced: int) -> IncarnationState:
        if fenced:
            return IncarnationState.FENCED
        return IncarnationState.ALIVE if registry.alive(self._folder.incarnations, name) else IncarnationState.DEAD


def _abort(db: sqlite3.Cursor, gtrid: str) -> Resolution:
    db.execute(_ABORT, (gtrid, time.time()))
    return _resolution(db, gtrid) or Resolution.ABORTED


def _abort_noted(db: sqlite3.Cursor, gtrid: str) -> Resolution:
    db.execute(_DROP_NOTE, (gtrid,))
    return _abort(db, gtrid)


def _resolution(db: sqlite3.Cursor, gtrid: str) -> Resolution | None:
    """How the gtrid stands in the log; None if nothing is kept under its key."""
    row = db.execute("SELECT substr(branches, 1, 1) FROM decisions WHERE gtrid = ?", (gtrid,)).fetchone()
    return None if row is None else resolution_of(row[0])


def _purge(db: sqlite3.Cursor, gtrids: list[tuple[str]]) -> None:
    for table in ("decisions", "finished", "pointers"):
        db.executemany(f"DELETE FROM {table} WHERE gtrid = ?", gtrids)


def _publish(db: sqlite3.Cursor, name: str, old: str | None) -> None:
    if old is not None:
        _fence(db, old)
    db.execute("INSERT INTO incarnations (name) VALUES (?)", (name,))
    record = SideRecord(INCARNATION, name, FORMAT, time.time())
    db.execute("INSERT INTO memos (kind, name, text, made) VALUES (?, ?, ?, ?)", astuple(record))


def _fence(db: sqlite3.Cursor, name: str) -> bool:
    if db.execute("UPDATE incarnations SET fenced = fenced + 1 WHERE name = ?", (name,)).rowcount == 1:
        return True
    # An expired incarnation is moved back.
    db.execute("INSERT INTO incarnations (name, fenced) SELECT name, 1 FROM expired WHERE name = ?", (name,))
    return db.execute("DELETE FROM expired WHERE name = ?", (name,)).rowcount == 1
