"""Tables that tasks have written direct: what is prepared in them is invisible to their transaction's own driver.

A DELETE of his would leave those rows, and an INSERT with one of their keys would wait for a branch that ends only
after it. Where that comes to pass all the same, as an append may have it, `selfwait` finds it out.
"""

from __future__ import annotations

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.tm.transaction import Transaction

_DIRECT = "txpool.spark.direct"


def note_direct_write(transaction: Transaction, source: DataSource, table: str) -> None:
    """Tasks have prepared rows in the table, which is given by its full name."""
    transaction.values.setdefault(_DIRECT, set()).add((source.name, table))


def require_visible(transaction: Transaction, source: DataSource, table: str, mode: str) -> None:
    """ProgrammingError where the mode is about rows that are there, and the transaction's driver misses some."""
    if mode in ("overwrite", "upsert") and (source.name, table) in transaction.values.get(_DIRECT, ()):
        harm = "would leave them there" if mode == "overwrite" else "might come to wait for its own transaction"
        raise ProgrammingError(
            f"{transaction.gtrid}: {mode} of {table} in {source.name}: an earlier write of this transaction has gone "
            f"into it direct, and the transaction sees none of those rows before it commits: this {harm}. Write that "
            "one with strategy='staged', or commit in between. Nothing was done."
        )
