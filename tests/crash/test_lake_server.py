"""The server of a lake's catalog is killed while others write: all of a transaction is there, or nothing of it.

Its processes die by SIGKILL, and it is started again, at random moments; a seed draws the same again. Once by default,
and 20 times with TXPOOL_CRASH_FULL=1; 10 of Spark's.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases
from tests.crash.consumers import LOGGED
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.test_lake import RANDOM_KILLS, RECOVERY, WRITE, Site, in_use
from tests.support import preloaded
from tests.support.waiting import until
from txpool.demo.server import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.costly]

WRITER = f"""{WRITE}
import time
for number in range(int(sys.argv[1]), 1_000_000, 2):
    try:
        write(number)
    except Exception as error:  # the server is gone
        print(repr(error), file=sys.stderr)
        time.sleep(0.1)
    else:
        print(number, flush=True)
"""
SPARK = """
import sys
from pyspark.sql import SparkSession
import txpool
from txpool.spark import write_table
spark = SparkSession.builder.getOrCreate()
txpool.configure("txpool.properties")
for number in range(1_000_000):
    rows = spark.range(number, number + 1, numPartitions=1)
    try:
        with txpool.transaction():
            for name in ("orders", "lines"):
                write_table(rows, "wh.properties", "db." + name)
            with txpool.connect("two.properties") as two:
                two.execute("insert into done values (%s)", [number])
    except Exception as error:  # the server is gone
        print(repr(error), file=sys.stderr)
    else:
        print(number, flush=True)
"""


@pytest.fixture
def databases(victim: EmbeddedPostgres) -> Databases:
    """Those of a server that may be killed."""
    found = Databases(victim)
    found.empty()
    return found


@pytest.fixture
def site(databases: Any, tmp_path: Path, monkeypatch: Any, eventually: Eventually) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    yield from in_use(Site(tmp_path, databases, marked=False), databases, eventually)


def killed_again_and_again(site: Site, databases: Databases, kills: int, running: Callable[[], bool]) -> None:
    """Kill the server so often while others write, who go on after each."""
    chance, server = random.Random(SEED), databases.server

    def rows() -> int:
        return int(databases.rows("two", "select count(*) from done")[0][0])

    for number in range(kills + 1):
        before = rows()
        until(lambda before=before: rows() > before + 1 or not running(), 600, pause=0.1)
        assert running(), "a writer has ended by itself"
        if number == kills:
            break
        time.sleep(chance.random() / 2)  # any moment is right
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(chance.random())
        server.start()
        recovering = preloaded.start("-c", RECOVERY, cwd=site.folder, env=dict(os.environ))
        _, errors = recovering.communicate(timeout=600)
        assert recovering.returncode == 0, errors


def require_whole(site: Site, said: str) -> None:
    site.recover()
    assert {int(line) for line in said.split()} <= set(site.require_whole()), f"seed {SEED}"


def test_two_python_writers(site: Site, databases: Databases, evidence: Evidence) -> None:
    writers = []
    for first in (0, 1):
        program = LOGGED.format(file=f"errors-{first}") + WRITER
        writers.append(preloaded.start("-c", program, str(first), cwd=site.folder, env=dict(os.environ)))
    kills = RANDOM_KILLS // 2
    killed_again_and_again(site, databases, kills, lambda: all(each.poll() is None for each in writers))
    for each in writers:
        each.kill()
    require_whole(site, "".join(each.communicate(timeout=600)[0] for each in writers))
    evidence.add(Count.KILLS, kills)


@pytest.mark.spark
def test_spark(
    site: Site,
    databases: Databases,
    evidence: Evidence,
    spark_process: Callable[..., subprocess.Popen[str]],
) -> None:
    driver = spark_process(SPARK)
    kills = max(RANDOM_KILLS // 4, 1)
    killed_again_and_again(site, databases, kills, lambda: driver.poll() is None)
    os.killpg(driver.pid, signal.SIGKILL)
    require_whole(site, driver.communicate(timeout=600)[0])
    evidence.add(Count.KILLS, kills)
