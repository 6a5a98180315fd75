"""The table `xids` of a marked datasource: rows that decide, and tombstones that stand where a row would.

Both have the same key, the gtrid, so that a fence and a late COMMIT can never both win. Whoever meets a row counts
`confirmed` up, which makes it durable: a row that a dead process never synced is readable, too, and SQLite leaves
out the write of a value that is the same.

One more row is the table's own identity: a random name, and on PostgreSQL the server and the database that it was
given in. The branches of a transaction name it, so that a tombstone is never put into a table that is not the one.
That tells another database's table, a table that was made anew, and on PostgreSQL a copy restored under another name
or on another server, which gets an identity of its own when it is first used. A copy of a SQLite file, a PostgreSQL
server restored from its own backup, and a standby that has lost what it had not received are the same to the letter:
what was decided after the copy was made, they do not know.

The table's format, and that of the branches in its rows, is the number in that row's `transaction_manager_id`: txp1. A
table that a later version has given another number is neither read nor written. The rows need none of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from txpool.errors import ConfigurationError, NotSupportedError, OperationalError, translated
from txpool.resources.base import BranchRecord, MarkedRow, Refused, decode, encode
from txpool.resources.driver import Driver
from txpool.resources.marks import IDENTITY, WrongTable
from txpool.xid import PREFIX, split_gtrid

_CHUNK = 500


class RowLocation(NamedTuple):
    """The place of a row: the table that it was written into, and what its dialect finds it by there."""

    table: str
    row: str


NO_ROW = RowLocation("", "")


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
        if driver.marks is None:
            raise NotSupportedError(f"datasource {datasource}: its database has no table of marks. Nothing was done")
        self._marks = driver.marks
        self._full_name: str | None = None
        #: The table's identity, and the place where it has that.
        self._identity: tuple[str, str] | None = None

    def create(self) -> None:
        """Create the table where it is missing, and give it an identity where it has none."""
        with self._session() as raw:
            # Where it is there, the right to create one is not needed; PostgreSQL asks for that first.
            if self._marks.qualified_name(raw, self._table) is None:
                self._driver.execute(raw, self._marks.create(self._table))
                self._require_ours(raw, writes=True)  # another may have been faster
            self._assign_identity(raw)

    @property
    def table(self) -> str:
        """The table's full name, found once. ConfigurationError where there is no such table."""
        if self._full_name is None:
            with self._session(writes=False) as raw:
                self._full_name = self._marks.qualified_name(raw, self._table)
        if self._full_name is None:
            raise ConfigurationError(
                f"datasource {self.datasource}: there is no table {self._table}, which holds its marks: "
                "`txpool-recovery init` creates it. Nothing is committed"
            )
        return self._full_name

    def identity(self, raw: Any) -> str:
        """The table's identity, found once. One that has none is given it; `raw` is the marked transaction's own.

        Where nobody else can write beside that transaction (SQLite), it is the one to write it; as it may yet roll
        back, its branches name none.
        """
        if self._identity is None:
            with self._session(writes=False) as own:
                known = self._identity = self._valid_identity(own)
            if known is None and self._marks.is_sole_writer(raw):
                self._assign_identity(raw)
                return ""
            if known is None:
                with self._session() as own:
                    self._assign_identity(own)
                    self._identity = self._valid_identity(own)
        return self._identity[0] if self._identity else ""

    def mark(
        self,
        raw: Any,
        gtrid: str,
        branches: Iterable[BranchRecord],
        delete: list[str],
        *,
        identity: str = "",
        until: float | None = None,
    ) -> tuple[RowLocation, list[str]]:
        """Write a transaction's row into its own open local transaction.

        Returns where the row is, and the rides that were deleted. `Refused` where the connection leads to another
        table than the one of this identity.
        """
        row = _new_row(gtrid, "commit", encode(branches))
        known = self._identity
        try:
            with translated():
                if identity and known and self._marks.database_identity(raw) != known[1]:
                    raise WrongTable
                table = self.table
                where, deleted = self._marks.mark(raw, table, row, delete, identity=identity, until=until)
                return RowLocation(table, where), deleted
        except WrongTable:
            self._full_name = self._identity = None
            raise

    def commit(self, raw: Any, where: RowLocation, branches: Iterable[BranchRecord]) -> None:
        """Commit, with the branches as they have voted in the row: three ends, as those of a dialect's commit."""
        # Another thread may have found meanwhile that the datasource leads elsewhere now: this row does not move.
        self._marks.commit_row(raw, where.table, where.row, encode(branches))

    def read(self) -> list[MarkedRow]:
        """Every row and tombstone of ours, read without resolving anything."""
        with self._session(writes=False) as raw:
            rows = self._driver.execute(
                raw,
                f"select xid, transaction_manager_id, kind, branches from {self._qualified(raw)}",  # noqa: S608
            ).fetchall()
        for xid, number, *_ in rows:
            if xid == IDENTITY:
                self._require_format(number)
        return [_as_marked_row(*row) for row in rows if _is_ours(row[0])]

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        """Insert an abort tombstone, or meet what is there and make it durable. An error leaves it undecided.

        On PostgreSQL it waits for a row whose transaction is in flight, on SQLite for whoever may write, both as
        long as the lock timeout. OperationalError where the table has another identity, or none.
        """
        row = _new_row(gtrid, "abort", "[]")
        one = self._marks.parameter
        with self._session() as raw:
            table = self._qualified(raw)
            self._require_identity(raw, identity)
            self._driver.execute(raw, *self._marks.put_tombstone(table, row))
            found = self._driver.execute(
                raw,
                f"select xid, transaction_manager_id, kind, branches from {table} where xid = {one}",  # noqa: S608
                [gtrid],
            ).fetchone()
        return _as_marked_row(*found)

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete rows and tombstones, of our own nodes only."""
        keys = [g for g in gtrids if self._nodes is None or split_gtrid(g).node in self._nodes]
        if not keys:
            return
        with self._session() as raw:
            table = self._qualified(raw)
            if self._identity is not None:
                self._require_identity(raw, self._identity[0])
            for start in range(0, len(keys), _CHUNK):
                chunk = keys[start : start + _CHUNK]
                these = ", ".join([self._marks.parameter] * len(chunk))
                self._driver.execute(raw, f"delete from {table} where xid in ({these})", chunk)  # noqa: S608

    def _stored_identity(self, raw: Any) -> tuple[str, str] | None:
        """The identity that the table has, and the place where it was given that; None where it has none."""
        found = self._driver.execute(
            raw,
            "select action_uid, branches, transaction_manager_id "  # noqa: S608
            f"from {self._qualified(raw)} where xid = '{IDENTITY}'",
        ).fetchone()
        if found is None:
            return None
        self._require_format(found[2])
        return str(found[0]), str(found[1])

    def _require_format(self, number: str) -> None:
        if number != PREFIX:
            raise OperationalError(
                f"datasource {self.datasource}: the table {self._table} has format {number}; this txpool reads "
                f"{PREFIX}. A later txpool has written it: use that one. Nothing was done"
            )

    def _valid_identity(self, raw: Any) -> tuple[str, str] | None:
        """The same, with the place where it is; None where that is another, so that it is a copy."""
        found, place = self._stored_identity(raw), self._marks.database_identity(raw)
        return None if found is None or _differ(found[1], place) else (found[0], place)

    def _assign_identity(self, raw: Any) -> None:
        """Give the table an identity where it has none, or is a copy."""
        if self._valid_identity(raw) is None:
            row = {"xid": IDENTITY, "transaction_manager_id": PREFIX, "action_uid": secrets.token_hex(6)}
            row |= {"kind": "abort", "branches": self._marks.database_identity(raw)}
            before = self._stored_identity(raw)
            former = before[0] if before else ""
            self._driver.execute(raw, *self._marks.put_identity(self._qualified(raw), row, former))

    def _require_identity(self, raw: Any, identity: str) -> None:
        """Raise where the table is not the one that has, or had, this identity."""
        found, place = self._stored_identity(raw), self._marks.database_identity(raw)
        if found is None and not identity:
            return  # made by an earlier version, and so was the transaction
        if found is None or (identity and found[0] != identity):
            there = f"has the identity {found[0]}" if found else "has no identity"
            why = f"the transaction's has the identity {identity}, and the one that is there {there}"
        elif _differ(found[1], place):
            why = f"it was made in {found[1]}, and this is {place}"
        else:
            return
        raise OperationalError(
            f"datasource {self.datasource} leads to another table {self._table} than the transaction's: {why}. Correct "
            "its url. Where the right one is lost for good, only people can tell how the transaction ended: end its "
            "branches by hand, as the data says"
        )

    def _qualified(self, raw: Any) -> str:
        if self._full_name is None:
            self._full_name = self._marks.qualified_name(raw, self._table)
        return self._full_name or self.table

    def _require_ours(self, raw: Any, *, writes: bool) -> None:
        """OperationalError where a table of that name is there, and none of ours: what it says was said by others."""
        found = self._full_name or self._marks.qualified_name(raw, self._table)
        if found is not None:
            self._marks.require_ours(raw, found, self._driver.roles, writes=writes)

    @contextmanager
    def _session(self, *, writes: bool = True) -> Iterator[Any]:
        """A durable transaction on a connection of its own; closing that rolls it back, however we leave.

        The table counts by its owner, in each of them. A marked transaction's own connection does not look: before
        its first one the process has found the table by this, and only its owner can make another of it.
        """
        raw = self._driver.connect()
        try:
            with translated():
                self._marks.begin(raw, self._lock_timeout, writes=writes)
                self._require_ours(raw, writes=writes)
                yield raw
                self._driver.dialect.commit(raw)
        except self._driver.module.Error as error:
            error.add_note(f"datasource {self.datasource}: its table of marks could not be used")
            raise
        except Refused as refusal:
            raise OperationalError(f"datasource {self.datasource}: its table of marks: {refusal}") from refusal
        finally:
            self._driver.close(raw)


def _new_row(gtrid: str, kind: str, branches: str) -> dict[str, str]:
    named = split_gtrid(gtrid)
    return {
        "xid": gtrid,
        "transaction_manager_id": named.node,
        "action_uid": named.incarnation,
        "kind": kind,
        "branches": branches,
    }


def _as_marked_row(gtrid: str, node: str, kind: str, branches: str) -> MarkedRow:
    return MarkedRow(gtrid, node, kind == "commit", decode(gtrid, branches))


def _differ(place: str, other: str) -> bool:
    # Where the role may not see the server's identity, there is nothing to compare.
    return bool(place and other and place != other)


def _is_ours(gtrid: str) -> bool:
    try:
        split_gtrid(gtrid)
    except ValueError:
        return False
    return True
