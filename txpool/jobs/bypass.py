"""A Spark task that would work past its driver's transaction is refused.

Such is a task of Spark's own methods, foreachPartition or a pandas function, whose job was started within a
transaction: what it does over a connection of its own commits by itself, whatever becomes of that.
"""

from __future__ import annotations

from sys import modules
from typing import Any

from txpool.errors import ProgrammingError
from txpool.jobs.driver_query import ask
from txpool.jobs.properties import AMBIENT, NO_JOB, UNSURE

#: The stage, and what its job tells of, that the driver has had nothing against; the last one.
_passed: tuple[int, str] | None = None

_HOW = (
    "Run the function by txpool.spark.foreach_partition(), or map_partitions() where it yields something, and it is "
    "a part of the transaction, but for threads of its own; write_table() writes rows as they are. What must be "
    'outside, a look-up for one, belongs into a function that is @txpool.transactional("not_supported")'
)


def in_task() -> bool:
    """Whether this process works at a Spark task now; in any thread of it."""
    return _task() is not None


def _task() -> Any:
    kind = getattr(modules.get("pyspark"), "TaskContext", None)
    return None if kind is None else kind.get()


def refuse_in_task(what: str) -> None:
    """ProgrammingError in a task whose job was started within a transaction; `what` would be done outside of it.

    A thread that has inherited what its jobs tell goes on with it when the transaction has ended, and those are no part
    of it any more. So the driver is asked; without its answer the transaction may be open, and is taken for that.
    """
    global _passed
    context = _task()
    if context is None:
        return
    value, stage = context.getLocalProperty(AMBIENT) or "", context.stageId()
    if not value or (stage, value) == _passed:
        return
    names, _, address = value.rpartition("@")
    gtrids = names.removeprefix(UNSURE).split()
    found = ask(address, stage, gtrids)
    if found == []:
        _passed = stage, value
        return
    if found is None:
        silent = f" does not answer at {address.partition('/')[0]} (UDP)" if address else " cannot be asked"
        why = (
            f"tells of {' and '.join(gtrids)}, and whether that had ended before is not known, since the driver's "
            f"process{silent}. What shall outlive a transaction, as a stream does, start outside of it"
        )
    elif found == [NO_JOB]:
        why = f"tells of {' and '.join(gtrids)}, and Spark is not at work at that job any more"
    else:
        unsure = ", or beside it by one who shares its thread" if names.startswith(UNSURE) else ""
        why = (
            f"was started within {' and '.join(found)}{unsure}: this would commit by itself, whatever becomes of that "
            "transaction"
        )
    raise ProgrammingError(f"{what}: the job of this Spark task {why}. Nothing was written. {_HOW}")
