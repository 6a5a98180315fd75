"""Whether this process has loaded Spark. Only here the core asks that, and nothing of Spark is imported for it.

A program may use Spark without txpool.spark, and its jobs are then told of transactions, too. So the import of Spark
itself decides, and not that of txpool.spark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import modules
from typing import Any

_PACKAGE = "pyspark"


#: Whether there may be a session, jobs or a task here. Each transaction asks several times.
is_loaded: Callable[[], bool] = partial(modules.__contains__, _PACKAGE)


def class_named(name: str) -> Any:
    """A class of Spark's; None if Spark is not loaded, or not to its end."""
    return getattr(modules.get(_PACKAGE), name, None)
