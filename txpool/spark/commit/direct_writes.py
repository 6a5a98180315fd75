"""Remembers the tables that a transaction's tasks have written with strategy direct.

The rows there are prepared in the branches of tasks, so the driver's branch cannot see them. A DELETE in the driver's
branch would leave those rows, and an INSERT with one of their keys would wait for a branch that ends only with the
transaction. An append can still run into such a wait; `self_deadlock` detects it.
"""

from __future__ import annotations

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.tm.transaction import Transaction

_DIRECT = "txpool.spark.direct"


def note_direct_write(transaction: Transaction, source: DataSource, table: str) -> None:
    """Remember that tasks have prepared rows in the table, given by its full name."""
    transaction.values.setdefault(_DIRECT, set()).add((source.name, table))


def require_visible(transaction: Transaction, source: DataSource, table: str, mode: str) -> None:
    """ProgrammingError for an overwrite or upsert of a table in which the driver cannot see all existing rows."""
    if mode in ("overwrite", "upsert") and (source.name, table) in transaction.values.get(_DIRECT, ()):
        harm = "would leave those rows" if mode == "overwrite" else "might have to wait for its own transaction"
        raise ProgrammingError(
            f"{transaction.gtrid}: {mode} of {table} in {source.name}: an earlier write of this transaction used "
            f"strategy direct, and the transaction cannot see its rows before it commits: this write {harm}. Do the "
            "earlier write with strategy staged, or commit in between. Nothing was done."
        )
