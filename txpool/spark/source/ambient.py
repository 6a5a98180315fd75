"""Finds the transaction that a write by the "txpool" format is a part of, by a local property of the Spark job."""

from __future__ import annotations

from pyspark import TaskContext

from txpool.errors import ProgrammingError
from txpool.jobs.properties import AMBIENT, UNCERTAIN, find_transaction
from txpool.tm.transaction import Transaction


def gtrid_of_job(context: TaskContext) -> str:
    """The gtrid of the transaction that a task's job is a part of; empty if there is none. Called in the task.

    ProgrammingError if it is not certain that the job is a part of the transaction.
    """
    gtrid = (context.getLocalProperty(AMBIENT) or "").rpartition("@")[0]
    if gtrid.startswith(UNCERTAIN):
        raise ProgrammingError(
            f"{gtrid.removeprefix(UNCERTAIN)} was begun in an asyncio task (a notebook's cell is one) or in another "
            "thread, so it is not certain whether this write is a part of it: use write_table(), which takes the "
            "transaction from its caller. Nothing was written"
        )
    return gtrid


def find_ambient(gtrid: str) -> Transaction:
    """The open transaction of that gtrid in the driver's process. Errors: ProgrammingError, TransactionTimeout."""
    transaction = find_transaction(gtrid)
    if transaction is None or transaction.ended:
        raise ProgrammingError(f"{gtrid}, which this write was a part of, has ended meanwhile. Nothing was written")
    transaction.require_active()
    return transaction
