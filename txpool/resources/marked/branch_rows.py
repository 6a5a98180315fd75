"""The rows that branches write into a table of their own database: `xa.evidence = row`.

A branch writes its row before its PREPARE, so the row is there exactly if the branch has committed. That shows how a
branch has ended that is gone, also if the server does not tell it, has failed over, or was restored.

A row is deleted once nobody will ask for it: by the transaction's process after the log has durably forgotten the
decision, or by recovery once that process is fenced and there is no decision. So if the decision is still there
after a look that has found no row, the branch has not committed.

The table has the columns of a table of marks, its row of identity, and the same guard of its owner. Its key is a
branch's whole name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from txpool.errors import OperationalError
from txpool.resources.base import BranchOutcome, BranchRecord, Purge
from txpool.resources.driver.driver import Driver
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import Xids
from txpool.xid import Xid, parse, split_gtrid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

#: The evidence in a branch's record that it has written a row: the identity of the table.
ROW: Final = "row"
_KEY_LENGTH: Final = 160
#: How many rows are deleted at a time: a connection is opened for them.
_BATCH: Final = 500
#: Whether any branch of this process may write a row.
in_use = False


class BranchRows(Xids):
    """One datasource's table of rows. Thread-safe: a method opens a connection, and closes it."""

    holds = "the rows of its branches"

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        table: str,
        *,
        nodes: Collection[str] | None = None,
        lock_timeout: float = 5.0,
    ) -> None:
        super().__init__(datasource, driver, table, nodes=nodes, lock_timeout=lock_timeout, key_length=_KEY_LENGTH)
        #: By key: what deletes the decision from the log.
        self.purges: dict[str, Purge] = {}

    def evidence(self, raw: RawConnection) -> dict[str, str]:
        """What the record of a branch on this raw connection has. The table is looked for once.

        ConfigurationError if it is missing; OperationalError if the connection leads to another database.
        """
        identity, database = self.known_identity()
        there = self._marks.database_identity(raw)
        if database and there and database != there:
            raise OperationalError(
                f"datasource {self.datasource}: {self.table} was found in database {database}, and a connection leads "
                f"to {there}. Nothing was prepared"
            )
        return {ROW: identity}

    def insert(self, xid: Xid) -> str:
        """The statement that writes the row of a branch, in its own transaction."""
        named = split_gtrid(xid.gtrid)
        return (  # a name has no character that a literal would have to escape
            f"insert into {self.table} (xid, transaction_manager_id, action_uid, kind, branches) "
            f"values ('{xid.joined}', '{named.node}', '{named.incarnation}', 'commit', '')"
        )

    def outcome(self, record: BranchRecord) -> BranchOutcome:
        """How a branch that is gone has ended: COMMITTED, or NO_ROW; LOST if this is another table than then.

        An error if that cannot be read.
        """
        one = self._marks.parameter
        with self._session(writes=False) as raw:
            found = self._valid_identity(raw)
            if found is None or found[0] != record.evidence[ROW]:
                return BranchOutcome.LOST
            row = self._execute(
                raw,
                f"select 1 from {self._qualified(raw)} where xid = {one}",
                [record.xid.joined],
            ).fetchone()
        return BranchOutcome.NO_ROW if row is None else BranchOutcome.COMMITTED

    def xids(self) -> list[Xid]:
        """The branches that have rows."""
        with self._session(writes=False) as raw:
            rows = self._execute(raw, f"select xid from {self._qualified(raw)}").fetchall()
        return [xid for (joined,) in rows if (xid := parse(str(joined))) is not None]

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete the rows of these branches, by their whole names: first their decisions, durably, then the rows."""
        keys = list(gtrids)
        decisions: dict[Purge, set[str]] = {}
        for key in keys:
            purge, xid = self.purges.get(key), parse(key)
            if purge is not None and xid is not None:
                decisions.setdefault(purge, set()).add(xid.gtrid)
        for purge, these in decisions.items():
            purge(these)
        # The table may have been made anew. No other transaction's row has such a name: so it is deleted there as well.
        self._identity = None
        Xids.delete(self, keys)  # not by super(), which the mutations of the tests cannot replace
        for key in keys:
            self.purges.pop(key, None)

    def _is_of_our_nodes(self, key: str) -> bool:
        xid = parse(key)
        return xid is not None and super()._is_of_our_nodes(xid.gtrid)


class RowsDriver(Driver, Protocol):
    """A driver whose branches may write rows."""

    @property
    def rows(self) -> BranchRows: ...

    @property
    def rows_queue(self) -> RowsQueue | None:
        """What deletes rows; None if its branches write none."""


class RowsQueue(CleanupQueue):
    """The rows of branches whose decisions are forgotten. Each waits for the log, which must be open."""

    what = "finished branch's row"

    def __init__(self, rows: BranchRows, *, batch_size: int = _BATCH) -> None:
        super().__init__(rows, batch_size=batch_size)
        self.rows = rows

    @property
    def points(self) -> bool:
        return bool(self)

    def add_forgotten(self, xid: Xid, purge: Purge) -> None:
        """Queue the row of a branch whose decision the log has been told to forget; `purge` makes that durable."""
        self.rows.purges[xid.joined] = purge
        self.add(xid.joined)

    def discard(self) -> None:
        self.rows.purges.clear()
        super().discard()


def outcome_by_row(rows: BranchRows, record: BranchRecord, *, rolling_back: bool) -> BranchOutcome:
    """How a branch that was prepared, and is gone, has ended. While it is to roll back, nobody deletes its row."""
    outcome = rows.outcome(record)
    return BranchOutcome.ROLLED_BACK if rolling_back and outcome is BranchOutcome.NO_ROW else outcome


def without_row(evidence: Mapping[str, str]) -> dict[str, str]:
    """The evidence of a branch that may still appear prepared: that it has no row shows nothing."""
    return {name: fact for name, fact in evidence.items() if name != ROW}


def forget_rows(branches: Iterable[Any], purge: Purge) -> None:
    """Let the rows of these branches be deleted: they have all committed, and the log was told to forget them."""
    for branch in branches:
        queue = getattr(branch, "rows_queue", None)
        if queue is not None and ROW in branch.record.evidence:
            queue.add_forgotten(branch.record.xid, purge)


def rows_of(settings: Any, driver: Driver) -> tuple[BranchRows, RowsQueue | None]:
    """The table of rows of a datasource, and, if its branches write rows, their queue. No I/O."""
    global in_use
    rows = BranchRows(settings.name, driver, settings.xa_evidence_table)
    if settings.xa_evidence != "row":
        return rows, None
    in_use = True
    return rows, RowsQueue(rows)
