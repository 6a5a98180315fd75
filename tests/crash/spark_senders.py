"""A Spark driver whose jobs send rows into a topic, each with a row of its own; its tasks' processes are killed, too.

By default 5 jobs of 20 rows and 3 kills; with TXPOOL_CRASH_FULL=1, 100 of 100 and 100.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.consumers import FULL, Killable, Work
from tests.crash.judged import require_atomic
from tests.support.waiting import until

ROWS = 100 if FULL else 20
_DRIVER = """
import logging, os, sys, time

import txpool
from pyspark.sql import SparkSession
from txpool import failpoints
from txpool.spark import write_messages

spark = SparkSession.builder.getOrCreate()
txpool.configure("txpool.properties")
jobs, rows = map(int, sys.argv[1:])
while True:
    if os.path.exists("arm"):
        with open("arm") as file:
            point, nth = file.read().split()
        os.remove("arm")
        failpoints.arm(point, "kill", nth=int(nth))
    try:
        with txpool.transaction() as ambient:
            ambient.may_be_empty = True
            with txpool.connect("orders.properties") as orders:
                ((job,),) = orders.execute("select count(*) from done").fetchall()
                if job >= jobs:
                    break
                orders.execute("insert into done values (?)", [str(job)])
            sent = spark.range(job * rows, (job + 1) * rows, 1, 2).selectExpr("cast(id as string) value")
            write_messages(sent, "out.properties")
    except Exception as error:  # of the broker, or of tasks: the next one begins where the rows say
        logging.warning("job %s: %s", job, str(error)[:300])
        time.sleep(0.2)
spark.stop()
"""


class _Driver:
    """A driver with its Java and its workers, as a consumer is killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.poll = process.poll

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        out, _ = self._process.communicate(timeout=timeout)
        arguments: Any = self._process.args
        return out, Path(arguments[1]).with_suffix(".err").read_text()

    def workers(self) -> list[int]:
        """The processes in which its tasks run."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                session = int((each / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self._process.pid and b"pyspark.daemon" in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
        return found


class SparkWork(Work):
    """A driver and recovery; the rows are the jobs that have committed."""

    victims = ("worker", "worker", "worker", "consumer", "point", "recovery", "broker")
    count, kills = (100, 100) if FULL else (5, 3)

    def __init__(
        self, spark_process: Callable[..., subprocess.Popen[str]], folder: Path, broker: Killable, chance: random.Random
    ) -> None:
        super().__init__(folder, broker, chance)
        self._spark_process = spark_process
        self.expected = Counter(map(str, range(self.count * ROWS)))

    def judge(self, sent: Sequence[str]) -> None:
        """Each job is a row, and each of its messages is in the topic."""
        jobs = {f"message {number} of each job": list[int]() for number in range(ROWS)}
        for job, number in (divmod(int(each), ROWS) for each in sent):
            jobs[f"message {number} of each job"].append(job)
        require_atomic(dict.fromkeys(map(str, range(self.count)), "committed"), {"rows": self.done(), **jobs})

    def feed(self) -> None:
        """Nothing: it sends numbers."""

    def start(self, role: str, failpoints: str = "") -> None:
        if role == "recovery":
            super().start(role)
        elif role == "consumer":
            (self.folder / "arm").unlink(missing_ok=True)
            process = self._spark_process(_DRIVER, str(self.count), str(ROWS), master="local[2,8]")
            self.running[role] = _Driver(process)

    def arm(self, point: str, nth: int) -> None:
        """In the driver that runs: another one takes long to start."""
        whole = self.folder / "arm.new"
        whole.write_text(f"{point} {nth}")
        whole.replace(self.folder / "arm")

    def kill(self, role: str) -> None:
        if role != "worker":
            super().kill(role)
            return
        driver = self.running["consumer"]
        until(lambda: driver.workers() or driver.poll() is not None, 300)
        time.sleep(self.chance.random())
        for each in driver.workers()[-1:]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
                print("a task's process is killed", flush=True)
