"""A process of the former version on a log that this one uses, too: its very statements, copied from commit ce25e2e.

They are what `txpool/log/sql.py`, `sqlite.py` and `memos.py` executed there, and are never to be brought up to date.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import psycopg

from txpool.xid import split_gtrid

_RECORD = """INSERT INTO txpool_decisions (gtrid, branches, made) SELECT %s, %s, %s FROM txpool_incarnations
    WHERE name = %s AND fenced = 0 FOR SHARE ON CONFLICT DO NOTHING"""
_ABORT = """INSERT INTO txpool_decisions AS met (gtrid, branches, made) VALUES (%s, NULL, %s)
    ON CONFLICT (gtrid) DO UPDATE SET made = met.made RETURNING branches IS NULL"""
_FORGET = """WITH pointers AS (DELETE FROM txpool_pointers WHERE gtrid = ANY(%(gtrids)s))
    DELETE FROM txpool_decisions WHERE gtrid = ANY(%(gtrids)s) AND branches IS NOT NULL"""
_POINT = """INSERT INTO txpool_pointers AS met (gtrid, datasource) VALUES (%s, %s)
    ON CONFLICT (gtrid) DO UPDATE SET datasource = met.datasource RETURNING datasource"""
_LET_GO = "DELETE FROM txpool_decisions WHERE gtrid = %s"
_FINISH = """INSERT INTO txpool_finished (gtrid) VALUES (%s)
    ON CONFLICT (gtrid) DO UPDATE SET gtrid = excluded.gtrid"""
_PUBLISH = """WITH old AS (UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %s)
    INSERT INTO txpool_incarnations (name, node, lease) VALUES (%s, %s, %s)"""
_FENCE = """UPDATE txpool_incarnations SET fenced = fenced + 1
    WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING fenced"""
_INCARNATIONS = """SELECT name, fenced, CASE WHEN fenced = 0 THEN NOT pg_try_advisory_xact_lock_shared(lease) END
    FROM txpool_incarnations WHERE %(every)s OR node = ANY(%(nodes)s)"""
_EXPIRE = """WITH gone AS (DELETE FROM txpool_incarnations
        WHERE name = ANY(%(names)s) AND fenced > 0 AND (%(every)s OR node = ANY(%(nodes)s))
        RETURNING name, node, lease)
    INSERT INTO txpool_expired (name, node, lease, since) SELECT name, node, lease, %(now)s FROM gone"""
_KEEP = """INSERT INTO txpool_memos (kind, name, text, made) VALUES (%s, %s, %s, %s)
    ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text, made = excluded.made"""
_MEMOS = "SELECT kind, name, text, made FROM txpool_memos WHERE kind = %s ORDER BY made, name"
_DECISIONS = "SELECT gtrid, branches, made FROM txpool_decisions WHERE branches IS NOT NULL"
_ASKED = {"every": True, "nodes": ["*"]}

_SQLITE_RECORD = """INSERT INTO decisions (gtrid, branches, made) SELECT ?, ?, ? FROM incarnations
    WHERE name = ? AND fenced = 0 ON CONFLICT DO NOTHING"""
_SQLITE_ABORT = """INSERT INTO decisions (gtrid, branches, made) VALUES (?, NULL, ?)
    ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1"""
_SQLITE_POINT = """INSERT INTO pointers (gtrid, datasource) SELECT ?, ? FROM incarnations
    WHERE name = ? AND fenced = 0 AND NOT EXISTS (SELECT 1 FROM decisions WHERE gtrid = ?)
    ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1 WHERE datasource = excluded.datasource"""
_SQLITE_FINISH = """INSERT INTO finished (gtrid) VALUES (?) ON CONFLICT (gtrid) DO UPDATE SET touched = touched + 1"""


def decode(text: str) -> list[tuple[str, str, str, dict[str, str]]]:
    """As the former version reads the branches of a decision: a list of exactly four each."""
    return [(bqual, datasource, identity, dict(evidence)) for bqual, datasource, identity, evidence in json.loads(text)]


class FormerOnServer:
    """On a log on a server, with a lease of its own."""

    def __init__(self, dsn: str, node: str, name: str) -> None:
        self.name = name
        self._lease = psycopg.connect(dsn, autocommit=True)
        self._lease.execute("SELECT pg_try_advisory_lock(%s)", [int(name, 36)])
        self._log = psycopg.connect(dsn, autocommit=True)
        self._log.execute(_PUBLISH, (None, name, node, int(name, 36)))

    def record(self, gtrid: str, branches: str) -> bool:
        return self._log.execute(_RECORD, (gtrid, branches, time.time(), split_gtrid(gtrid).incarnation)).rowcount == 1

    def abort(self, gtrid: str) -> bool:
        return self._log.execute(_ABORT, (gtrid, time.time())).fetchall() == [(True,)]

    def point(self, gtrid: str, datasource: str) -> bool:
        with self._log.transaction():
            row = gtrid, None, time.time(), split_gtrid(gtrid).incarnation
            if self._log.execute(_RECORD, row).rowcount != 1:
                return False
            found = self._log.execute(_POINT, (gtrid, datasource)).fetchone()
            self._log.execute(_LET_GO, (gtrid,))
            return found == (datasource,)

    def forget(self, gtrid: str) -> None:
        self._log.execute(_FORGET, {"gtrids": [gtrid]})

    def finish(self, gtrid: str) -> None:
        self._log.execute(_FINISH, (gtrid,))

    def fence(self, name: str) -> bool:
        return self._log.execute(_FENCE, _ASKED | {"name": name}).rowcount == 1

    def expire(self, name: str) -> None:
        self._log.execute(_EXPIRE, _ASKED | {"names": [name], "now": time.time()})

    def lives(self) -> dict[str, str]:
        rows = self._log.execute(_INCARNATIONS, _ASKED).fetchall()
        return {name: "fenced" if fenced else "alive" if held else "dead" for name, fenced, held in rows}

    def put_record(self, kind: str, name: str, text: str) -> None:
        self._log.execute(_KEEP, (kind, name, text, time.time()))

    def side_records(self, kind: str) -> list[Any]:
        return [json.loads(text) for _, _, text, _ in self._log.execute(_MEMOS, (kind,)).fetchall()]

    def decisions(self) -> dict[str, Any]:
        return {gtrid: decode(text) for gtrid, text, _ in self._log.execute(_DECISIONS).fetchall()}

    def close(self) -> None:
        if not self._lease.closed:
            self._lease.execute("SELECT pg_advisory_unlock_all()")
        self._lease.close()
        self._log.close()


class FormerInFolder:
    """On a log in a folder, with a lock of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._lock = (folder / "incarnations" / f"{name}.lock").open("xb")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._log = sqlite3.connect(folder / "log.db", isolation_level=None)
        self._log.execute("INSERT INTO incarnations (name) VALUES (?)", (name,))

    def record(self, gtrid: str, branches: str) -> bool:
        row = gtrid, branches, time.time(), split_gtrid(gtrid).incarnation
        return self._log.execute(_SQLITE_RECORD, row).rowcount == 1

    def abort(self, gtrid: str) -> bool:
        self._log.execute(_SQLITE_ABORT, (gtrid, time.time()))
        found = self._log.execute("SELECT branches IS NULL FROM decisions WHERE gtrid = ?", (gtrid,)).fetchone()
        return bool(found[0])

    def point(self, gtrid: str, datasource: str) -> bool:
        row = gtrid, datasource, split_gtrid(gtrid).incarnation, gtrid
        return self._log.execute(_SQLITE_POINT, row).rowcount == 1

    def forget(self, gtrid: str) -> None:
        self._log.execute("DELETE FROM decisions WHERE gtrid = ? AND branches IS NOT NULL", (gtrid,))
        self._log.execute("DELETE FROM pointers WHERE gtrid = ?", (gtrid,))

    def finish(self, gtrid: str) -> None:
        self._log.execute(_SQLITE_FINISH, (gtrid,))

    def fence(self, name: str) -> bool:
        return self._log.execute("UPDATE incarnations SET fenced = fenced + 1 WHERE name = ?", (name,)).rowcount == 1

    def expire(self, name: str) -> None:
        if self._log.execute("DELETE FROM incarnations WHERE name = ? AND fenced > 0", (name,)).rowcount:
            self._log.execute("INSERT OR REPLACE INTO expired (name, since) VALUES (?, ?)", (name, time.time()))

    def lives(self) -> dict[str, str]:
        rows = self._log.execute("SELECT name, fenced FROM incarnations").fetchall()
        return {name: "fenced" if fenced else self._state(name) for name, fenced in rows}

    def _state(self, name: str) -> str:
        path = self._folder / "incarnations" / f"{name}.lock"
        if not path.exists():
            return "dead"
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return "alive"
        return "dead"

    def put_record(self, kind: str, name: str, text: str) -> None:
        statement = "INSERT OR REPLACE INTO memos (kind, name, text, made) VALUES (?, ?, ?, ?)"
        self._log.execute(statement, (kind, name, text, time.time()))

    def side_records(self, kind: str) -> list[Any]:
        query = "SELECT kind, name, text, made FROM memos WHERE kind = ? ORDER BY made, name"
        return [json.loads(text) for _, _, text, _ in self._log.execute(query, (kind,)).fetchall()]

    def decisions(self) -> dict[str, Any]:
        rows = self._log.execute("SELECT gtrid, branches, made FROM decisions WHERE branches IS NOT NULL").fetchall()
        return {gtrid: decode(text) for gtrid, text, _ in rows}

    def close(self) -> None:
        self._log.close()
        self._lock.close()
