"""The table `xids` of a marked datasource: rows that decide, and tombstones that stand where a row would.

Both have the same key, the gtrid, so that a fence and a late COMMIT can never both win. Whoever meets a row counts
`confirmed` up, which makes it durable: a row that a dead process never synced is readable, too, and SQLite leaves
out the write of a value that is the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from txpool.drivers.base import Driver
from txpool.errors import ConfigurationError, OperationalError, translated
from txpool.log.base import decode, encode
from txpool.resources.base import BranchRecord, MarkedRow, Refused
from txpool.resources.dialects import DIALECTS
from txpool.xid import split_gtrid

_CHUNK = 500


class Xids:
    """One datasource's table of marks. Thread-safe: every method but `mark` opens a connection and closes it.

    `nodes` are those whose rows may be deleted (None: the caller deletes only what it has made); `lock_timeout` is
    in seconds.
    """

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        table: str = "xids",
        *,
        nodes: Collection[str] | None = None,
        lock_timeout: float = 5.0,
    ) -> None:
        self.datasource = datasource
        self._driver = driver
        self._table = table
        self._nodes = nodes
        self._lock_timeout = lock_timeout
        self._dialect = DIALECTS[driver.module.__name__]
        self._found: str | None = None

    def create(self) -> None:
        """Create the table where it is missing."""
        with self._session() as raw:
            raw.execute(
                f"create table if not exists {self._table} (xid varchar(64) primary key, "
                "transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, "
                "kind varchar(6) not null check (kind in ('commit', 'abort')), branches text not null, "
                f"confirmed integer not null default 0, made_at {self._dialect.moment})"
            )

    @property
    def table(self) -> str:
        """The table's full name, found once. ConfigurationError where there is no such table."""
        if self._found is None:
            with self._session(writes=False) as raw:
                self._found = self._dialect.qualified(raw, self._table)
        if self._found is None:
            raise ConfigurationError(
                f"datasource {self.datasource}: there is no table {self._table}, which holds its marks: "
                "`txpool-recovery init` creates it. Nothing is committed"
            )
        return self._found

    def mark(self, raw: Any, gtrid: str, branches: Iterable[BranchRecord], rides: list[str]) -> list[str]:
        """Write a transaction's row into its own open local transaction; returns the rides that it deleted."""
        row = _row(gtrid, "commit", encode(branches))
        with translated():
            return self._dialect.mark(raw, self.table, row, rides)

    def read(self) -> list[MarkedRow]:
        """Every row and tombstone of ours, read without resolving anything."""
        with self._session(writes=False) as raw:
            rows = raw.execute(
                f"select xid, transaction_manager_id, kind, branches from {self._qualified(raw)}"  # noqa: S608
            ).fetchall()
        return [_marked(*row) for row in rows if _is_ours(row[0])]

    def tombstone(self, gtrid: str) -> MarkedRow:
        """Insert an abort tombstone, or meet what is there and make it durable. An error leaves it undecided.

        On PostgreSQL it waits for a row whose transaction is in flight, on SQLite for whoever may write, both as
        long as the lock timeout.
        """
        row = _row(gtrid, "abort", "[]")
        one = self._dialect.parameter
        with self._session() as raw:
            table = self._qualified(raw)
            raw.execute(
                f"insert into {table} as met ({', '.join(row)}) values ({', '.join([one] * len(row))}) "  # noqa: S608
                "on conflict (xid) do update set confirmed = met.confirmed + 1",
                [*row.values()],
            )
            found = raw.execute(
                f"select xid, transaction_manager_id, kind, branches from {table} where xid = {one}",  # noqa: S608
                [gtrid],
            ).fetchone()
        return _marked(*found)

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete rows and tombstones, of our own nodes only."""
        keys = [g for g in gtrids if self._nodes is None or split_gtrid(g).node in self._nodes]
        if not keys:
            return
        with self._session() as raw:
            table = self._qualified(raw)
            for start in range(0, len(keys), _CHUNK):
                chunk = keys[start : start + _CHUNK]
                these = ", ".join([self._dialect.parameter] * len(chunk))
                raw.execute(f"delete from {table} where xid in ({these})", chunk)  # noqa: S608

    def _qualified(self, raw: Any) -> str:
        if self._found is None:
            self._found = self._dialect.qualified(raw, self._table)
        return self._found or self.table

    @contextmanager
    def _session(self, *, writes: bool = True) -> Iterator[Any]:
        """A durable transaction on a connection of its own; closing that rolls it back, however we leave."""
        raw = self._driver.connect()
        try:
            with translated():
                self._dialect.begin(raw, self._lock_timeout, writes=writes)
                yield raw
                self._dialect.commit(raw)
        except (psycopg.Error, sqlite3.Error) as error:
            error.add_note(f"datasource {self.datasource}: its table of marks could not be used")
            raise
        except Refused as refusal:
            raise OperationalError(f"datasource {self.datasource}: its table of marks: {refusal}") from refusal
        finally:
            self._driver.close(raw)


def _row(gtrid: str, kind: str, branches: str) -> dict[str, str]:
    named = split_gtrid(gtrid)
    return {
        "xid": gtrid,
        "transaction_manager_id": named.node,
        "action_uid": named.incarnation,
        "kind": kind,
        "branches": branches,
    }


def _marked(gtrid: str, node: str, kind: str, branches: str) -> MarkedRow:
    return MarkedRow(gtrid, node, kind == "commit", decode(gtrid, branches))


def _is_ours(gtrid: str) -> bool:
    try:
        split_gtrid(gtrid)
    except ValueError:
        return False
    return True
