"""Spark's own standalone cluster over hosts of their own: a master on this machine, a worker in each namespace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.crash.hosts import Host, Network
from tests.support.children import WITH_ITS_PARENT
from tests.support.waiting import until

_STARTS = 120.0  # seconds in which a Java of a busy machine has started
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
#: The master notices soon that a worker is cut off, and starts an executor again however often it is killed.
_OPTIONS = "-Dspark.worker.timeout=30 -Dspark.deploy.maxExecutorRetries=-1"


class Cluster:
    """A worker on each host of a network, with so many cores as Spark counts them."""

    def __init__(self, network: Network, environment: Mapping[str, str], folder: Path, cores: int) -> None:
        self.hosts = network.hosts
        self._address = network.address
        self._cores = cores
        self._folder = folder
        self._environment = os.environ | dict(environment) | {"SPARK_DAEMON_MEMORY": "256m"}
        self._class = f"{environment['SPARK_HOME']}/bin/spark-class"
        self._started: dict[str, subprocess.Popen[str]] = {}
        #: Of its master.
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start_all(self) -> None:
        master = ("org.apache.spark.deploy.master.Master", "--host", self._address, "--port", "0")
        self._start(None, "master", *master)
        self.url = f"spark://{self._said('master', 'spark://')}"
        for host in self.hosts:
            work = ("--work-dir", str(self._folder / f"work-{host.letter}"), self.url)
            size = ("--host", host.address, "--cores", str(self._cores), "--memory", "1g")
            self._start(host, f"worker-{host.letter}", "org.apache.spark.deploy.worker.Worker", *size, *work)
        for host in self.hosts:
            self._said(f"worker-{host.letter}", "Successfully registered with master ")

    def executors(self, host: Host) -> list[int]:
        return host.processes(_EXECUTOR)

    def kill_executor(self, chance: random.Random) -> None:
        """One of those that are there now; until one is, it waits."""
        found: list[int] = []
        until(lambda: found.extend(pid for host in self.hosts for pid in self.executors(host)) or found, _STARTS)
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)

    def host_at(self, address: str) -> Host:
        (found,) = (host for host in self.hosts if host.address == address)
        return found

    def close(self) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()

    def _start(self, host: Host | None, name: str, *arguments: str) -> None:
        environment = self._environment | {"SPARK_DAEMON_JAVA_OPTS": _OPTIONS}
        if host is not None:
            environment["SPARK_LOCAL_IP"] = host.address
        command = (self._class, *arguments, "--webui-port", "0")
        with self._errors(name).open("w") as errors:
            options: dict[str, Any] = {"cwd": self._folder, "env": environment, "stdin": subprocess.DEVNULL}
            options |= {"stdout": errors, "stderr": errors, "text": True}
            started = (
                subprocess.Popen([*WITH_ITS_PARENT, *command], **options)
                if host is None
                else host.start(*command, **options)
            )
        self._started[name] = started

    def _errors(self, name: str) -> Path:
        return self._folder / f"{name}.err"

    def _said(self, name: str, what: str) -> str:
        """The word that follows what a daemon says once it has started."""

        def has_said() -> bool:
            assert self._started[name].poll() is None, self._errors(name).read_text()
            return what in self._errors(name).read_text()

        until(has_said, _STARTS, f"{name} has not started")
        return self._errors(name).read_text().partition(what)[2].split()[0]
