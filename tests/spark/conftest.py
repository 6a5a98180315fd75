"""What the tests of Spark's writes stand on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool.datasource
from txpool.datasource.registry import search_folders
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.cores.max": "4",
    "spark.executor.memory": "512m",
    # All executors are there before the first task.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@pytest.fixture
def sources(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: a decision log, and a file for each database, with its password by reference."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    for name in (databases.one, databases.two):
        describe(tmp_path, name, databases.url(name))
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield tmp_path
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    search_folders.clear()  # a test that works as a worker has received the driver's
    manager.close()


def describe(folder: Path, name: str, url: str, *more: str) -> None:
    """Write a datasource's file. Workers keep their pools from test to test, and each begins by ending all sessions."""
    lines = [f"name = {name}", "driver = psycopg", f"url = {url}", "password = ${file:secret}", "pool.check-bypass = 0"]
    (folder / f"{name}.properties").write_text("\n".join([*lines, *more, ""]))


@pytest.fixture
def cluster(spark_environ: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The url of a standalone cluster of real processes: a master, and workers on two addresses of this machine."""
    environment = (
        os.environ
        | spark_environ
        | {
            "SPARK_DAEMON_MEMORY": "256m",
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
