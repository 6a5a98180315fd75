"""The findings about a table of marks that all databases share."""

from __future__ import annotations

from collections.abc import Iterable

from txpool.findings.finding import Finding, failure, ok
from txpool.xid import PREFIX

#: The columns that txpool writes.
COLUMNS = ("xid", "transaction_manager_id", "action_uid", "kind", "branches", "confirmed", "made_at")
#: An SQL condition: the row is a mark or a tombstone, whose key is a gtrid.
IS_MARK = f"xid like '{PREFIX}:_%:_%:_%'"
#: The advice if there is no table.
CREATE = "name the datasource in recovery.properties and run `txpool-recovery init`, which creates it"


#: What a table of marks holds, and what one of branches' rows does: see `txpool.resources.marked.branch_rows`.
DECISIONS = "it holds the decision of each transaction"
EVIDENCE = "xa.evidence = row: it shows how a branch has ended that is gone"


def missing_columns(table: str, lacking: Iterable[str], missing: str) -> Finding:
    """A failure for a table without these columns; `missing` is the advice if there is no table."""
    return failure(
        "table",
        f"{table} has no column {', '.join(lacking)}",
        "another program has created it, or it was created by hand",
        f"if nothing of another product is in it, DROP TABLE {table}; then {missing}",
    )


def row_count(name: str, count: int) -> Finding:
    """A finding of how many rows of branches the table has."""
    return ok(
        "rows",
        f"table {name} is right, and holds {count} rows of branches: their processes delete them in batches, and "
        "recovery deletes those of dead processes",
    )


def mark_count(name: str, count: int, oldest: float) -> Finding:
    """A finding of how many marks the table has; `oldest` is the age of the oldest, in seconds."""
    if not count:
        return ok("marks", f"table {name} is right, and holds no marks")
    return ok(
        "marks",
        f"table {name} is right, and holds {count} marks, the oldest from {oldest / 3600:.1f} hours ago: their "
        "processes delete them in batches, and recovery deletes those of dead processes",
    )
