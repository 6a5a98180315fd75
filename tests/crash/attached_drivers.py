"""Spark drivers that may be killed, at the price of a fork: one Java has Spark, and each driver is attached to it.

A driver's end leaves Java and its Python workers alone: so the tasks of a dead driver go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from recovery.cli import main as recovery
from tests.spark.losing_tasks import kill_executor
from txpool import failpoints

#: Whom a task kills: its own process, the driver's Python, or Spark's Java, which is driver and executor at once.
WORKER, DRIVER, JAVA = "worker", "driver", "java"
#: How long a task whose driver was killed waits for recovery, in seconds.
_PATIENCE = 60.0


@dataclass
class Answer:
    """What became of an order: the exit code, or the signal as a negative number; what was said, and counted."""

    end: int
    said: str = ""
    driver: dict[str, int] = field(default_factory=dict)
    task: dict[str, int] = field(default_factory=dict)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(whom: str, driver: int, number: int) -> None:
    """What a task of this order does. Beside a dead driver it waits for `let_tasks_end`, and goes on."""
    if whom == WORKER:
        os.kill(os.getpid(), signal.SIGKILL)
    elif whom == JAVA:
        kill_executor()
    else:
        os.kill(driver, signal.SIGKILL)
        _wait_for(Path(f"recovered-{number}").exists)


def let_tasks_end(number: int) -> None:
    """A driver is dead: one scan comes before its tasks go on, and this returns once they have ended."""
    run_child(scan)  # it may find a branch whose session is still there, and leave that alone
    Path(f"recovered-{number}").touch()
    run_child(_wait_until_idle)


def count_points() -> None:
    for point in failpoints.POINTS:
        failpoints.arm(point, "count")


def reached() -> dict[str, int]:
    return {point: times for point in failpoints.POINTS if (times := failpoints.reached(point))}


def attached() -> SparkContext:
    """Spark's context in the Java that the first process has started."""
    gateway: Any = launch_gateway()
    java = gateway.jvm.org.apache.spark
    context = java.api.java.JavaSparkContext(java.SparkContext.getOrCreate())
    return SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))


def run_child(act: Callable[[], Answer]) -> Answer:
    """Act in a child, and hear what becomes of it."""
    hearing, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hearing)
            with open(telling, "w") as out:
                json.dump(asdict(act()), out)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        finally:
            os._exit(0)
    os.close(telling)
    with open(hearing) as answer:
        text = answer.read()
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Answer(**json.loads(text)) if end == 0 else Answer(end)


def scan() -> Answer:
    """One scan by the command, and what it prints."""
    with open("scanned", "w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.argv = ["txpool-recovery", "scan", "--conf", "recovery.properties"]
    end: Any = 0
    try:
        recovery()
    except SystemExit as error:
        end = error.code or 0
    sys.stdout.flush()
    return Answer(int(end), Path("scanned").read_text())


def _wait_until_idle() -> Answer:
    """Wait until no task of a dead driver runs any more."""
    tracker = attached()._jsc.statusTracker()
    _wait_for(lambda: not len(tracker.getActiveJobIds()))
    return Answer(0)


def start(serve: Callable[[], None]) -> SparkSession:
    """Start Spark, and serve in a child, whose children may attach; returns once that has ended well."""
    hearing, telling = os.pipe()
    server = os.fork()  # before Spark, whose connections are this process's
    if server == 0:
        try:
            os.close(telling)
            with open(hearing) as words:
                os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = words.readline().split()
            serve()
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    os.close(hearing)
    spark = SparkSession.builder.getOrCreate()
    gateway: Any = spark.sparkContext._gateway
    with open(telling, "w") as words:
        words.write(f"{gateway.gateway_parameters.port} {gateway.gateway_parameters.auth_token}\n")
    assert os.waitpid(server, 0)[1] == 0
    return spark
