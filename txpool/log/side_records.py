"""What the stores keep beside decisions: side records, and expired incarnations. Bases of the sqlite and sql stores."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, astuple
from typing import Any, Final

from txpool.log.base import SideRecord
from txpool.log.sql.sessions import Sessions
from txpool.log.sql.statements import Script, Statements
from txpool.log.sqlite.group import GroupCommit

_SELECT_RECORDS: Final[Script] = (
    "SELECT kind, name, text, made FROM txpool_memos WHERE kind = %(kind)s ORDER BY made, name",
)
_DELETE_UNCHANGED: Final[Script] = (
    "DELETE FROM txpool_memos WHERE kind = %(kind)s AND name = %(name)s AND made = %(recorded_at)s",
)


class SqliteSideRecords:
    """Side records and expired incarnations in a sqlite log."""

    _group: GroupCommit

    def expire(self, incarnations: Iterable[str]) -> None:
        self._group.write(_expire, [*incarnations])

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        if incarnations is None:
            return {name for (name,) in self._read("SELECT name FROM expired")}
        return {name for name in incarnations if self._read("SELECT 1 FROM expired WHERE name = ?", name)}

    def put_record(self, *records: SideRecord) -> None:
        statement = "INSERT OR REPLACE INTO memos (kind, name, text, made) VALUES (?, ?, ?, ?)"
        rows = list(map(astuple, records))
        self._group.write(lambda db: db.executemany(statement, rows))

    def side_records(self, kind: str) -> list[SideRecord]:
        query = "SELECT kind, name, text, made FROM memos WHERE kind = ? ORDER BY made, name"
        return [SideRecord(*row) for row in self._read(query, kind)]

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        keys = [(kind, name) for name in names]
        self._group.write(lambda db: db.executemany("DELETE FROM memos WHERE kind = ? AND name = ?", keys))

    def delete_unchanged(self, records: Iterable[SideRecord]) -> None:
        statement = "DELETE FROM memos WHERE kind = ? AND name = ? AND made = ?"
        keys = [(each.kind, each.name, each.recorded_at) for each in records]
        self._group.write(lambda db: db.executemany(statement, keys))

    def _read(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        return self._group.read(lambda db: db.execute(query, parameters).fetchall())


def _expire(db: sqlite3.Cursor, names: list[str]) -> None:
    for name in names:
        if db.execute("DELETE FROM incarnations WHERE name = ? AND fenced > 0", (name,)).rowcount:
            db.execute("INSERT OR REPLACE INTO expired (name, since) VALUES (?, ?)", (name, time.time()))
    # Also of incarnations that the first version expired, which leaves their side records.
    db.execute("DELETE FROM memos WHERE kind = 'incarnation' AND name IN (SELECT name FROM expired)")


class SqlSideRecords:
    """Side records and expired incarnations in a sql log."""

    _sessions: Sessions
    _statements: Statements
    _node_filter: dict[str, Any]

    def expire(self, incarnations: Iterable[str]) -> None:
        parameters = self._node_filter | {"names": [*incarnations], "now": time.time()}
        self._sessions.run(self._statements.expire, parameters)

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        names = {"all": incarnations is None, "names": [*(incarnations or ())]}
        rows = self._sessions.read(self._statements.expired, self._node_filter | names)
        return {name for (name,) in rows}

    def put_record(self, *records: SideRecord) -> None:
        for each in records:
            self._sessions.run(self._statements.put_record, asdict(each))

    def side_records(self, kind: str) -> list[SideRecord]:
        return [SideRecord(*row) for row in self._sessions.read(_SELECT_RECORDS, {"kind": kind})]

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        self._sessions.run(self._statements.delete_records, {"kind": kind, "names": [*names]})

    def delete_unchanged(self, records: Iterable[SideRecord]) -> None:
        for record in records:
            self._sessions.run(_DELETE_UNCHANGED, asdict(record))
