"""Spark for tests: one session that all share, and processes with a session of their own that may be killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.demo import java
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Require

    SparkProcess = Callable[..., subprocess.Popen[str]]
    LocalCluster = Callable[..., str]

_TIMEOUT = 240.0
# A Java of these tests lives for seconds: the second compiler and parallel collection cost more than they give back.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark_environ(tmp_path_factory: pytest.TempPathFactory, require: Require) -> dict[str, str]:
    """The environment variables that Spark starts with."""
    spec = importlib.util.find_spec("pyspark")
    require(spec, "Spark: pip install 'txpool[spark]'")
    assert spec is not None
    assert spec.origin is not None
    folder = tmp_path_factory.mktemp("spark")
    # A local cluster writes into SPARK_HOME/work whatever SPARK_WORKER_DIR says: not into the installed package.
    home = folder / "home"
    home.mkdir()
    for entry in Path(spec.origin).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    try:
        return java.spark_environment(folder) | {"SPARK_HOME": str(home), "JDK_JAVA_OPTIONS": _SHORT_LIVED}
    except ConfigurationError as error:
        require(False, str(error))
        raise


@pytest.fixture(scope="session")
def spark(spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark with two threads in this process, shared by all tests. A local cluster needs `local_cluster`."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environ.items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_SUBMIT_ARGS", _submit_arguments("local[2]", {}))
        session = SparkSession.builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        with chdir(tmp_path_factory.mktemp("nowhere")):  # where Spark's processes are: no test's folder
            spark = session.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
        spark.stop()


def _submit_arguments(master: str, conf: Mapping[str, str]) -> str:
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **conf}
    return " ".join([f"--master {master}", *(f"--conf {key}={settings[key]}" for key in settings), "pyspark-shell"])


@pytest.fixture
def spark_process(spark_environ: dict[str, str], tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[SparkProcess]:
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
        environment["PYSPARK_SUBMIT_ARGS"] = _submit_arguments(master, conf or {})
        environment["PYTHONPATH"] = os.pathsep.join([str(pytestconfig.rootpath), environment.get("PYTHONPATH", "")])
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
