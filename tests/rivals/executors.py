"""Spark for clients: a driver with an executor of its own, each a process that may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.jdbc import jar
from tests.support.spark import started_in, submit_arguments

_EXECUTOR = b"CoarseGrainedExecutorBackend"
_JAVA = b"java\0"


def driver_jar() -> Path:
    """PostgreSQL's driver for Java, which Maven brings."""
    return jar("org.postgresql:postgresql:42.7.8")


def spark_environment(folder: Path) -> dict[str, str]:
    """The environment of a client's Python, in a contest's folder."""
    place = folder / "spark"
    if not place.exists():
        place.mkdir()
        _environments[folder] = started_in(place)
    path = str(driver_jar())
    conf = {"spark.jars": path, "spark.driver.extraClassPath": path}  # --jars, --driver-class-path
    arguments = submit_arguments("local-cluster[1,2,1024]", conf)
    return _environments[folder] | {"PYSPARK_SUBMIT_ARGS": arguments}


_environments: dict[Path, dict[str, str]] = {}


def descendants(pid: int) -> list[int]:
    """The process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def kill_drivers(pids: Iterable[int]) -> None:
    """Kill the Java of a driver."""
    _kill(pid for pid in pids if _JAVA in (command := _command(pid)) and _EXECUTOR not in command)


def kill_executors(pids: Iterable[int]) -> None:
    """Kill what runs a driver's tasks."""
    _kill(pid for pid in pids if _EXECUTOR in _command(pid))


def runs(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pids: Iterable[int]) -> None:
    for pid in list(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
