"""Bypassing: a Spark task may not do work that goes past its driver's transaction.

It would in a task of Spark's own methods, such as foreachPartition or a pandas function, whose job was started within a
transaction: what the task does over a connection of its own commits by itself, also when the transaction rolls back.
"""

from __future__ import annotations

from typing import Any

from txpool.errors import ProgrammingError
from txpool.jobs import spark
from txpool.jobs.driver_query import ask
from txpool.jobs.properties import AMBIENT, NO_JOB, UNCERTAIN

#: The last stage and job property for which the driver has answered that no transaction is open.
_cleared: tuple[int, str] | None = None

_WHAT_TO_DO = (
    "Run the function by txpool.spark.foreach_partition(), or map_partitions() if it yields something, and it is "
    "a part of the transaction, except in threads that it starts; write_table() writes rows as they are. Put what must "
    'be outside, such as a look-up, into a function that is @txpool.transactional("not_supported")'
)


def in_task() -> bool:
    """Whether this thread, or another of this process, works at a Spark task now."""
    return _task() is not None


def _task() -> Any:
    kind = spark.class_named("TaskContext")
    return None if kind is None else kind.get()


def refuse_in_task(what: str) -> None:
    """ProgrammingError in a task whose job was started within a transaction; `what` would be done outside of it.

    A thread that has inherited the job property keeps it also when the transaction has ended, and its later jobs do not
    belong to that any more. So the driver is asked. Without its answer the transaction counts as open.
    """
    global _cleared
    context = _task()
    if context is None:
        return
    value, stage = context.getLocalProperty(AMBIENT) or "", context.stageId()
    if not value or (stage, value) == _cleared:
        return
    names, _, address = value.rpartition("@")
    gtrids = names.removeprefix(UNCERTAIN).split()
    begun_in = ask(address, stage, gtrids)
    if begun_in == []:
        _cleared = stage, value
        return
    if begun_in is None:
        no_answer = f" does not answer at {address} (UDP)" if address else " cannot be asked"
        reason = (
            f"tells of {' and '.join(gtrids)}, and whether that had ended before is not known, since the driver's "
            f"process{no_answer}. What shall outlive a transaction, as a stream does, start outside of it"
        )
    elif begun_in == [NO_JOB]:
        reason = f"tells of {' and '.join(gtrids)}, and Spark is not at work at that job any more"
    else:
        uncertain = ", or beside it by one who shares its thread" if names.startswith(UNCERTAIN) else ""
        reason = (
            f"was started within {' and '.join(begun_in)}{uncertain}: this would commit by itself, whatever becomes of "
            "that transaction"
        )
    raise ProgrammingError(f"{what}: the job of this Spark task {reason}. Nothing was written. {_WHAT_TO_DO}")
