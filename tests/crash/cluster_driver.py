"""A Spark driver that writes loads as it is told, and may be killed.

`python -m tests.crash.cluster_driver PARTITIONS ROWS` in a site's folder reads the number of a load from each line of
stdin, and says a line for each step: `up`; `written`, after which it waits for a line before it commits; and `told`
with what the caller was told. A load has a transaction_id, and so may be written again. All its partitions stand in two
databases: one by `write_table`, the other by a function of its own in the tasks.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import txpool
from tests.crash.site import DONE, UNDONE, UNKNOWN
from tests.support.waiting import until
from txpool import failpoints
from txpool.spark import map_partitions, write_table
from txpool.tm.manager import configure

TABLE = "landed"


def zombie(load: int, what: str, folder: Path = Path()) -> Path:
    """A file by which a zombie and the test speak: `wanted`, `here` with its address, `go`, or `sent`."""
    return folder / f"zombie-{load}-{what}"


@dataclass(frozen=True)
class Writer:
    """Writes a partition into the second database. If a zombie is wanted, it stops before its PREPARE."""

    load: int
    folder: Path

    def __call__(self, rows: Iterator[Any]) -> list[int]:
        values = [(self.load, row.id) for row in rows]
        with txpool.connect("two.properties") as connection:
            connection.cursor().executemany(f"insert into {TABLE} values (%s, %s)", values)
        if self._is_zombie():
            self._stop()
        return [len(values)]

    def _is_zombie(self) -> bool:
        context = TaskContext.get()
        assert context is not None
        wanted = zombie(self.load, "wanted", self.folder)
        if context.partitionId() != 0 or not wanted.exists():
            return False
        wanted.unlink()
        return True

    def _stop(self) -> None:
        """Stay until the test says so, then send the PREPARE, and say that."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of the workers' daemon, whose executor may have ended
        here = zombie(self.load, "arriving", self.folder)
        here.write_text(os.environ["SPARK_LOCAL_IP"])
        here.rename(zombie(self.load, "here", self.folder))
        until(zombie(self.load, "go", self.folder).exists, 600)
        failpoints.arm("branch.prepare-sent", zombie(self.load, "sent", self.folder).touch)


def write(load: int, partitions: int, rows: int, spark: SparkSession) -> None:
    frame = spark.range(partitions * rows, numPartitions=partitions).selectExpr(f"{load} as load", "id")
    with txpool.transaction(transaction_id=f"load-{load}", record_in="one.properties"):
        write_table(frame, "one.properties", TABLE, strategy="direct", max_partitions=partitions)
        writer = Writer(load, Path.cwd())
        assert sum(map_partitions(frame, writer, datasources=["two.properties"])) == partitions * rows
        print("written", flush=True)
        sys.stdin.readline()


def outcome(load: int, partitions: int, rows: int, spark: SparkSession) -> str:
    """What the caller was told. A load that was done before is committed."""
    try:
        write(load, partitions, rows, spark)
    except txpool.AlreadyDone:
        return DONE
    except txpool.TransactionInDoubt:
        traceback.print_exc()
        return UNKNOWN
    except txpool.HeuristicError as error:
        return f"{type(error).__name__}: {error}"
    except Exception:
        traceback.print_exc()
        return UNDONE
    return DONE


def main() -> None:
    partitions, rows = map(int, sys.argv[1:])
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    manager = configure("txpool.properties")
    print("up", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print("told", outcome(int(line), partitions, rows, spark), flush=True)
    spark.stop()
    manager.close()


if __name__ == "__main__":
    main()
