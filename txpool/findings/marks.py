"""What is to be said of a table of marks, whatever database it is in."""

from __future__ import annotations

from collections.abc import Iterable

from txpool.findings.finding import Finding, failure, ok
from txpool.xid import PREFIX

#: The columns that txpool writes.
COLUMNS = ("xid", "transaction_manager_id", "action_uid", "kind", "branches", "confirmed", "made_at")
#: Which rows are marks: their key is a gtrid.
IS_MARK = f"xid like '{PREFIX}:_%:_%:_%'"
#: What is to be done where there is no table.
CREATE = "name the datasource in recovery.properties and run `txpool-recovery init`, which makes it"


def missing_columns(table: str, lacking: Iterable[str], missing: str) -> Finding:
    """It has not all columns; `missing` is what is to be done where there is no table."""
    return failure(
        "table",
        f"{table} has no column {', '.join(lacking)}",
        "it was made by something else, or by hand",
        f"if nothing of another product is in it, DROP TABLE {table}; then {missing}",
    )


def mark_count(name: str, count: int, oldest: float) -> Finding:
    """What a number of marks, and the age of the oldest, mean."""
    if not count:
        return ok("marks", f"table {name} is right, and holds no marks")
    return ok(
        "marks",
        f"table {name} is right, and holds {count} marks, the oldest from {oldest / 3600:.1f} hours ago: their "
        "processes delete them in batches, and recovery those of dead ones",
    )
