"""The transaction that a write by the "txpool" format is a part of: the one that its job tells of."""

from __future__ import annotations

from pyspark import TaskContext

from txpool.errors import ProgrammingError
from txpool.jobs.properties import AMBIENT, UNCERTAIN, find_transaction
from txpool.tm.transaction import Transaction


def gtrid_of_job(context: TaskContext) -> str:
    """The gtrid that a task's job tells of, or nothing. ProgrammingError where that may be another's."""
    told = (context.getLocalProperty(AMBIENT) or "").rpartition("@")[0]
    if told.startswith(UNCERTAIN):
        raise ProgrammingError(
            f"{told.removeprefix(UNCERTAIN)} was begun in an asyncio task (a notebook's cell is one) or in another "
            "thread, and whether this write is a part of it cannot be told: use write_table(), which knows. Nothing "
            "was written"
        )
    return told


def find(told: str) -> Transaction:
    """The transaction that a job has told of, to be worked in. Errors: ProgrammingError, TransactionTimeout."""
    transaction = find_transaction(told)
    if transaction is None or transaction.ended:
        raise ProgrammingError(f"{told}, which this write was a part of, has ended meanwhile. Nothing was written")
    transaction.require_active()
    return transaction
