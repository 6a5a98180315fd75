"""Two attempts of one partition at the same time. Spark copies a slow one to another host only, so there are two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Databases

pytestmark = pytest.mark.spark

# Java that starts quickly, rather than to run for long.
_QUICK = "-XX:+UseSerialGC"

_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.cores.max": "4",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.driver.extraJavaOptions": _QUICK,
    # All executors are there before the first task.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}

# The copy of partition 1 begins before the first attempt prepares, so it adopts nothing; and neither of the two
# reports before the other is prepared, too. In the second job the copy is through while the first attempt sleeps.
_SCRIPT = """
    import json, os, sys, time, warnings
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool import manager
    from txpool.datasource import connect
    from txpool.scope import transaction
    from txpool.spark import foreach_partition

    folder = Path(sys.argv[1])
    os.chdir(folder)
    copied, prepared = folder / "copied", [folder / "prepared0", folder / "prepared1"]


    def wait_for(path):
        while not path.exists():
            time.sleep(0.05)


    def insert(rows, job):
        here = TaskContext.get()
        cursor = connect("one.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s, %s, %s)", [row, job, here.taskAttemptId()])


    def both(rows):
        insert(rows, 0)
        here = TaskContext.get()
        if here.partitionId() == 1:
            number = here.attemptNumber()

            def meet(status):
                prepared[number].touch()
                wait_for(prepared[1 - number])

            manager.current().after_completion(meet)
            copied.touch() if number else wait_for(copied)


    def slow(rows):
        insert(rows, 1)
        here = TaskContext.get()
        if here.partitionId() == 1 and not here.attemptNumber():
            time.sleep(600)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    said = []
    for job, write in enumerate((both, slow)):
        with warnings.catch_warnings(record=True) as caught, transaction() as tx:
            warnings.simplefilter("always")
            report = foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
        said.append([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()])
    print(json.dumps([said, [str(warning.message) for warning in caught]]))
    spark.stop()
"""


@pytest.fixture
def cluster(spark_environ: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The url of a standalone cluster of real processes: a master, and workers on two addresses of this machine."""
    environment = (
        os.environ
        | spark_environ
        | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_QUICK} -XX:TieredStopAtLevel=1",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
    )
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [f"{spark_environ['SPARK_HOME']}/bin/spark-class", *arguments, "--webui-port", "0"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    def said(process: subprocess.Popen[str], what: str) -> str:
        assert process.stderr is not None
        line = ""
        while what not in line:
            line = process.stderr.readline()
            assert line, f"{process.args} ended"
        return line

    try:
        master = start("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        url = f"spark://{said(master, 'spark://').rpartition('spark://')[2].split()[0].rstrip('/')}"
        workers = [
            start(
                "org.apache.spark.deploy.worker.Worker",
                *("--host", host, "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / host), url),
            )
            for host in ("127.0.0.1", "127.0.0.2")
        ]
        for worker in workers:
            said(worker, "Successfully registered with master")
        yield url
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_both_attempts_prepare_and_one_wins(
    local_cluster: Callable[..., str], cluster: str, databases: Databases, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "one.properties").write_text(
        f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:secret}}\n"
    )
    databases.execute("one", "create table landed (id bigint, job int, attempt bigint)")
    output = local_cluster(_SCRIPT, str(tmp_path), master=cluster, conf=_SPECULATION)
    said: list[Any] = json.loads(output.splitlines()[-1])
    (both, slow), warned = said
    # Three attempts for two partitions, of which two win; as the third may come late, recovery is told of it.
    assert both == slow == [2, 3, 2, True]
    assert (tmp_path / "prepared0").exists()
    assert (tmp_path / "prepared1").exists()
    rows = databases.rows("one", "select job, id from landed order by job, id")
    assert rows == [(job, number) for job in (0, 1) for number in range(4)]
    assert databases.rows("one", "select count(distinct attempt) from landed where job = 0 and id > 1") == [(1,)]
    assert databases.prepared() == []
    log, copies = warned
    assert log.startswith("the decision log sqlite:///")
    assert f"the master is {cluster}" in log
    assert copies.startswith("spark.speculation is on")
