"""The table `xids` of a marked datasource: marks, which are decisions to commit, and tombstones, which are aborts.

A mark and a tombstone of a transaction have the same key, the gtrid, so only one of them can be there. A tombstone
therefore fences a COMMIT that is still on its way. A process that tries to insert a tombstone and finds a mark
increments the mark's `confirmed`. That makes the mark durable: a mark that its process has never synced can be read as
well, and SQLite does not write a row whose values stay the same.

One more row has the table's own identity: a random name, and on PostgreSQL the identity of the server and database. The
xids of a transaction's other branches carry the name, so that a tombstone is never put into the wrong table. The
identity tells apart: the table of another database, a table that was created again, and on PostgreSQL a copy that was
restored under another name or on another server; a copy gets an identity of its own when it is first used. The identity
cannot tell apart: a copy of a SQLite file, a PostgreSQL server that was restored from its own backup, and a standby
that was promoted before it had received everything. Decisions made after such a copy was taken are not in it.

The identity's row also has, as `transaction_manager_id`, the number of the table's format and of the branches in its
rows: txp1. A table with another number was written by a later version, and is neither read nor written.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from txpool.errors import ConfigurationError, NotSupportedError, OperationalError, translate, translated
from txpool.resources.base import BranchRecord, Refused, decode, encode
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import IDENTITY, WrongTable
from txpool.resources.recovery_access import MarkedRow
from txpool.xid import PREFIX, is_gtrid, is_identity, split_gtrid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

_DELETED_AT_ONCE = 500  # rows that one DELETE names


class RowLocation(NamedTuple):
    """The table into which a mark was written, and the key by which `Marks.commit_row` finds it there."""

    table: str
    row: str


NO_ROW = RowLocation("", "")


class Xids:
    """One datasource's table of marks. Thread-safe: a method without a raw connection opens one, and closes it.

    `delete` deletes only rows of `nodes`; None is for a caller that deletes only its own. `lock_timeout` is in seconds.
    """

    #: What the table holds, for errors.
    holds = "its marks"

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        table: str = "xids",
        *,
        nodes: Collection[str] | None = None,
        lock_timeout: float = 5.0,
        key_length: int | None = None,
    ) -> None:
        self.datasource = datasource
        self._driver = driver
        self._table = table
        self._nodes = nodes
        self._lock_timeout = lock_timeout
        self._key_length = () if key_length is None else (key_length,)
        if driver.marks is None:
            raise NotSupportedError(f"datasource {datasource}: its database has no table of marks. Nothing was done")
        self._marks = driver.marks
        self._full_name: str | None = None
        #: The table's identity, and the identity of its database.
        self._identity: tuple[str, str] | None = None

    def create(self) -> bool:
        """Create the table if it does not exist, and give it an identity if it has none; whether it was created."""
        with self._session() as raw:
            # PostgreSQL wants the right to create a table even for one that exists.
            created = self._marks.qualified_name(raw, self._table) is None
            if created:
                self._execute(raw, self._marks.create(self._table, *self._key_length))
                self._require_ours(raw, writes=True)  # another process may have created it first
            self._assign_identity(raw)
        return created

    @property
    def table(self) -> str:
        """The table's name with its schema, read once. ConfigurationError if there is no such table."""
        if self._full_name is None:
            with self._session(writes=False) as raw:
                self._full_name = self._marks.qualified_name(raw, self._table)
        if self._full_name is None:
            raise ConfigurationError(
                f"datasource {self.datasource}: there is no table {self._table}, which holds {self.holds}: "
                "`txpool-recovery init` creates it. Nothing is committed"
            )
        return self._full_name

    def identity(self, raw: RawConnection) -> str:
        """The table's identity, read once; a table without one is given one. `raw` is the marked transaction's own.

        Empty if that transaction excludes every other writer (SQLite) and has just written a new identity: the
        transaction may still roll back, and the identity with it.
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
        raw: RawConnection,
        gtrid: str,
        branches: Iterable[BranchRecord],
        delete: list[str],
        *,
        identity: str = "",
        until: float | None = None,
    ) -> tuple[RowLocation, list[str]]:
        """Insert a transaction's mark in its own open local transaction.

        Returns the row's location, and the gtrids out of `delete` whose rows were deleted with it. `Refused` if the
        table of this connection has another identity.
        """
        row = _new_row(gtrid, "commit", encode(branches))
        known = self._identity
        try:
            if identity and known and self._marks.database_identity(raw) != known[1]:
                raise WrongTable
            table = self._full_name or self.table
            where, deleted = self._marks.mark(raw, table, row, delete, identity=identity, until=until)
        except WrongTable:
            self._full_name = self._identity = None
            raise
        except Exception as error:
            translate(error)
            raise
        return RowLocation(table, where), deleted

    def commit(self, raw: RawConnection, where: RowLocation, branches: Iterable[BranchRecord]) -> None:
        """Update the row with the evidence of the branches' votes, and commit; errors as `Dialect.commit`."""
        # The row's own table: another thread may have found meanwhile that the url leads to another database now.
        self._marks.commit_row(raw, where.table, where.row, encode(branches))

    def read(self) -> list[MarkedRow]:
        """Every mark and tombstone of txpool, read without resolving anything."""
        with self._session(writes=False) as raw:
            rows = self._marks.read_rows(partial(self._driver.execute, raw), self._qualified(raw))
        for xid, number, *_ in rows:
            if xid == IDENTITY:
                self._require_format(number)
        return [_as_marked_row(*row) for row in rows if is_gtrid(row[0])]

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        """Insert a tombstone, or make the row that has its key durable; returns the row that is there.

        It waits, at most for the lock timeout, for the transaction of an uncommitted row (PostgreSQL) or for the
        current writer (SQLite). An error leaves the decision unknown; OperationalError if the table has another
        identity, or none.
        """
        row = _new_row(gtrid, "abort", "[]")
        one = self._marks.parameter
        with self._session() as raw:
            table = self._qualified(raw)
            self._require_identity(raw, identity)
            self._marks.write_tombstone(partial(self._driver.execute, raw), table, row)
            found = self._execute(
                raw,
                f"select xid, transaction_manager_id, kind, branches from {table} where xid = {one}",
                [gtrid],
            ).fetchone()
        return _as_marked_row(*found)

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete rows and tombstones, of our own nodes only."""
        keys = [key for key in gtrids if self._is_of_our_nodes(key)]
        if not keys:
            return
        with self._session() as raw:
            table = self._qualified(raw)
            known = self._identity
            if known is not None:
                self._require_identity(raw, known[0])
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                chunk = keys[start : start + _DELETED_AT_ONCE]
                self._marks.delete(self._driver, raw, table, chunk)

    def _is_of_our_nodes(self, key: str) -> bool:
        return self._nodes is None or split_gtrid(key).node in self._nodes

    def known_identity(self) -> tuple[str, str]:
        """The table's identity, and that of its database, read once. ConfigurationError if there is no table."""
        known = self._identity
        if known is None:
            with self._session() as own:
                self._qualified(own)
                self._assign_identity(own)
                known = self._identity = self._valid_identity(own)
        return known or ("", "")

    def _stored_identity(self, raw: RawConnection) -> tuple[str, str] | None:
        """The table's identity, and the identity of the database in which it was assigned; None if it has none."""
        found = self._execute(
            raw,
            f"select action_uid, branches, transaction_manager_id from {self._qualified(raw)} where xid = '{IDENTITY}'",
        ).fetchone()
        if found is None:
            return None
        self._require_format(found[2])
        identity = str(found[0])
        if not is_identity(identity):  # recovery would not know the branches whose names have it
            raise OperationalError(
                f"datasource {self.datasource}: the identity of the table {self._table} is {identity!r}, which txpool "
                f"has not written: its row {IDENTITY!r} is damaged, or was changed by hand. Restore that row from a "
                "backup. Nothing was done"
            )
        return identity, str(found[1])

    def _require_format(self, number: str) -> None:
        if number != PREFIX:
            raise OperationalError(
                f"datasource {self.datasource}: the table {self._table} has format {number}; this txpool reads "
                f"{PREFIX}. A later txpool has written it: use that one. Nothing was done"
            )

    def _valid_identity(self, raw: RawConnection) -> tuple[str, str] | None:
        """The table's identity, and the identity of its database.

        None if the table has none, or was copied: then its identity was assigned in another database.
        """
        found, database = self._stored_identity(raw), self._marks.database_identity(raw)
        return None if found is None or _differ(found[1], database) else (found[0], database)

    def _assign_identity(self, raw: RawConnection) -> None:
        """Give the table an identity if it has none, or if it is a copy."""
        if self._valid_identity(raw) is None:
            row = {"xid": IDENTITY, "transaction_manager_id": PREFIX, "action_uid": secrets.token_hex(6)}
            row |= {"kind": "abort", "branches": self._marks.database_identity(raw)}
            before = self._stored_identity(raw)
            former = before[0] if before else ""
            self._marks.write_identity(partial(self._driver.execute, raw), self._qualified(raw), row, former)

    def _require_identity(self, raw: RawConnection, identity: str) -> None:
        """Raise OperationalError if the table has another identity, or is a copy in another database."""
        found, database = self._stored_identity(raw), self._marks.database_identity(raw)
        if found is None and not identity:
            return  # an earlier version created the table, and began the transaction
        if found is None or (identity and found[0] != identity):
            actual = f"has the identity {found[0]}" if found else "has no identity"
            why = f"the transaction's table has the identity {identity}, and the table that is there {actual}"
        elif _differ(found[1], database):
            why = f"the table was created in database {found[1]}, and the url leads to {database}"
        else:
            return
        raise OperationalError(
            f"datasource {self.datasource} leads to another table {self._table} than the transaction's: {why}. Correct "
            "its url. If the right table is lost for good, only people can tell how the transaction ended: end its "
            "branches by hand, as the data says"
        )

    def _qualified(self, raw: RawConnection) -> str:
        if self._full_name is None:
            self._full_name = self._marks.qualified_name(raw, self._table)
        return self._full_name or self.table

    def _execute(self, raw: RawConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        return self._driver.execute(raw, self._marks.spelled(statement), parameters)

    def _require_ours(self, raw: RawConnection, *, writes: bool) -> None:
        """Raise OperationalError if another role owns the table, or can change it: its rows are not ours."""
        found = self._full_name or self._marks.qualified_name(raw, self._table)
        if found is not None:
            self._marks.require_ours(raw, found, self._driver.roles, writes=writes)

    @contextmanager
    def _session(self, *, writes: bool = True) -> Iterator[Any]:
        """A connection of its own, in a transaction with durable commit; an exception rolls it back.

        The table's owner is checked in each session. A marked transaction's own connection does not check it: the
        process has found the table by a session before, and afterwards only its owner can replace it.
        """
        raw = self._driver.connect()
        try:
            with translated():
                self._marks.begin(raw, self._lock_timeout, writes=writes)
                self._require_ours(raw, writes=writes)
                yield raw
                self._driver.dialect.commit(raw)
        except self._driver.module.Error as error:
            error.add_note(f"datasource {self.datasource}: the table of {self.holds} could not be used")
            raise
        except Refused as refusal:
            raise OperationalError(f"datasource {self.datasource}: the table of {self.holds}: {refusal}") from refusal
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


def _differ(database: str, other: str) -> bool:
    # Empty if the role may not read the server's identity: then there is nothing to compare.
    return bool(database and other and database != other)
