"""What runs on the executor: one partition, as a subordinate transaction that ends prepared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from txpool.manager import _ambient
from txpool.resources.base import BranchRecord
from txpool.spark.attempts import PartitionResult, earlier_attempt
from txpool.spark.listing import list_attempts
from txpool.spark.travel import Luggage
from txpool.subordinate import Subordinate

#: PostgreSQL's SQLSTATE where no prepared transaction is left.
_NO_SLOT = "53200"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """What the driver sends to every partition: plain data, the user's function, and no secret."""

    gtrid: str
    write: int
    partitions: int
    function: Callable[[Iterator[Any]], object]
    luggage: Luggage

    def __call__(self, partition: int, rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """Write the partition and prepare it, or adopt what an earlier attempt prepared; one packed result."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        arrived = self.luggage.unpack()
        try:
            result = None
            if context.attemptNumber() > 0:
                result = self._adopted(partition)
            if result is None:
                result = self._written(partition, context.taskAttemptId(), rows)
        except Exception as error:
            error.add_note(f"partition {partition} of {self.gtrid}, task attempt {context.taskAttemptId()}")
            raise
        return iter([result.pack()])

    def _adopted(self, partition: int) -> PartitionResult | None:
        """The work of an earlier attempt: to do it again would wait for its locks for ever."""
        datasources = self.luggage.unpack()
        listing = list_attempts(datasources, gtrid=self.gtrid, write=self.write)
        earlier = earlier_attempt(listing.attempts, partition)
        if earlier is None:
            return None
        return PartitionResult(partition, earlier.number, earlier.records, {})
