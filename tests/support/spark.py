"""Spark for tests: one session that all share, and processes with a session of their own that may be killed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.repository import ROOT
from txpool.demo import java
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Require

    SparkProcess = Callable[..., subprocess.Popen[str]]
    LocalCluster = Callable[..., str]

_TIMEOUT = 900.0
# A Java of these tests lives for seconds: the second compiler and parallel collection cost more than they give back.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Loads most classes that a job of the tests needs, and waits until its Java has written them down.
_LOADS_CLASSES = """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(100).selectExpr("id", "cast(id as string) as text", "id * 1.5d as number")
    rows.repartition(2).foreachPartition(lambda found: None)
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("text").count().collect()
    rows.rdd.mapPartitions(lambda found: found).count()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
"""


@pytest.fixture(scope="session")
def spark_environ(tmp_path_factory: pytest.TempPathFactory, require: Require) -> dict[str, str]:
    """The environment variables that Spark starts with."""
    require(importlib.util.find_spec("pyspark"), "Spark: pip install 'txpool[spark]'")
    folder = tmp_path_factory.mktemp("spark")
    try:
        environment = started_in(folder)
    except ConfigurationError as error:
        require(False, str(error))
        raise
    if "PYTEST_XDIST_WORKER" in os.environ:  # for a few tests it does not pay
        archive = _class_archive(environment, tmp_path_factory.getbasetemp().parent)
        # Java would say on stdout, where some tests read, that an archive does not fit.
        environment["JDK_JAVA_OPTIONS"] += f" -XX:SharedArchiveFile={archive} -Xlog:disable"
    return environment


def started_in(folder: Path) -> dict[str, str]:
    """The environment variables with which Spark starts and writes into this folder alone. ConfigurationError."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    # A local cluster writes into SPARK_HOME/work whatever SPARK_WORKER_DIR says: not into the installed package. In
    # python/lib is the package once more, zipped: each process of Python would compile what it imports from there.
    home = folder / "home"
    home.mkdir()
    for entry in Path(spec.origin).parent.iterdir():
        if entry.name not in {"python", "work"}:
            (home / entry.name).symlink_to(entry)
    environment = java.spark_environment(folder) | {"SPARK_HOME": str(home), "JDK_JAVA_OPTIONS": _SHORT_LIVED}
    # A sitecustomize.py is there: of the mutations, and for what the workers of Python import.
    path = (str(ROOT), str(ROOT / "tests/support/spark_site"), os.environ.get("PYTHONPATH", ""))
    return environment | {"PYTHONPATH": os.pathsep.join(path)}


def _class_archive(environment: Mapping[str, str], folder: Path) -> Path:
    """Spark's classes as Java has them in memory, made once a run: with them it starts in two thirds of the time.

    Java ignores an archive that does not fit.
    """
    archive = folder / "classes.jsa"
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            archived = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
            arguments = submit_arguments("local[2]", archived)
            try:
                subprocess.run(
                    [sys.executable, "-c", textwrap.dedent(_LOADS_CLASSES)],
                    cwd=folder,
                    env=os.environ | dict(environment) | {"PYSPARK_SUBMIT_ARGS": arguments},
                    capture_output=True,
                    timeout=_TIMEOUT,
                    check=True,
                )
            except subprocess.SubprocessError:  # a busy machine: it only saves time
                archive.write_bytes(b"")
    return archive


@pytest.fixture(scope="session")
def spark(spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark with two threads in this process, shared by all tests. A local cluster needs `local_cluster`."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    with pytest.MonkeyPatch.context() as patch:  # of Spark alone: the tests that follow have their own
        for name, value in spark_environ.items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments("local[2]", {}))
        patch.chdir(tmp_path_factory.mktemp("nowhere"))  # where Spark's processes are: no test's folder
        spark = session.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


def submit_arguments(master: str, conf: Mapping[str, str]) -> str:
    """What PYSPARK_SUBMIT_ARGS says, for any session that a process asks for."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # To compile the code of a plan takes longer than to interpret it for a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Of what Python collects: a busy machine may take longer than the 15 s that Spark gives it.
        "spark.python.authenticate.socketTimeout": "10m",
        **conf,
    }
    return " ".join([f"--master {master}", *(f"--conf {key}={settings[key]}" for key in settings), "pyspark-shell"])


@pytest.fixture
def spark_process(spark_environ: dict[str, str], tmp_path: Path) -> Iterator[SparkProcess]:
    """`spark_process(source, *arguments, master=, conf=, env=)`: a Python process that may be killed.

    Whatever session `source` asks for is the one given by `master` and `conf`; its stdout is a pipe, its stderr a
    file beside it. A script that ends by itself calls `spark.stop()`, or a local cluster starts executors again and
    again while it goes down.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        source: str,
        *arguments: str,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        script = tmp_path / f"script_{len(started)}.py"
        script.write_text(textwrap.dedent(source))
        environment = os.environ | spark_environ | dict(env or {})
        environment["PYSPARK_SUBMIT_ARGS"] = submit_arguments(master, conf or {})
        with script.with_suffix(".err").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def local_cluster(spark_process: SparkProcess) -> LocalCluster:
    """`local_cluster(source, *arguments, conf=, env=)`: runs it to its end over two executor processes; its stdout."""

    def run(source: str, *arguments: str, **options: Any) -> str:
        process = spark_process(source, *arguments, **({"master": "local-cluster[2,1,1024]"} | options))
        output, _ = process.communicate(timeout=_TIMEOUT)
        errors = Path(process.args[1]).with_suffix(".err").read_text()  # type: ignore[index,arg-type]
        assert process.returncode == 0, f"exit code {process.returncode}\n{output}\n{errors[-8000:]}"
        return output

    return run
