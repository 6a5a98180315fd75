"""What runs on the executor: one partition, as a subordinate transaction that ends prepared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from txpool.manager import ambient
from txpool.resources.base import BranchRecord
from txpool.spark.attempts import PartitionResult, earlier_attempt
from txpool.spark.listing import list_attempts
from txpool.spark.travel import Luggage
from txpool.subordinate import Subordinate

#: PostgreSQL's SQLSTATE for "no prepared transaction is left".
_NO_SLOT = "53200"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """What the driver sends to every partition; holds no secret."""

    gtrid: str
    write: int
    partitions: int
    function: Callable[[Iterator[Any]], object]
    luggage: Luggage

    def __call__(self, partition: int, rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """Write the partition and prepare it, or adopt an earlier attempt's work; one packed PartitionResult."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        with self.luggage.unpacked() as datasources:
            if context.attemptNumber() > 0:
                shipped = datasources.shipped()
                listing = list_attempts(shipped, gtrid=self.gtrid, write=self.write)
                earlier = earlier_attempt(listing.attempts, partition)
                if earlier is not None:
                    ...
''' + "" if False else ""
