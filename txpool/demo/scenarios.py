"""The demo's scenes: a commit, a failure half-way, a kill before the decision and one after it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import txpool
from txpool.demo.flights import ROWS
from txpool.demo.folder import Counts, DemoFolder
from txpool.demo.job import Flights, HalfWayFailure, prepare_spark, source, write_flights
from txpool.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the job: what it should have left, and what the databases hold of it."""

    title: str
    expected: int
    counts: Counts
    prepared: int
    seconds: float

    @property
    def right(self) -> bool:
        return self.counts.agree and self.counts.flights == self.expected and self.prepared == 0


def run_scenarios(*, rows: int | None, spark: bool, keep: bool, console: Console) -> bool:
    """Play every scene and print what came of it; whether all counts were right. Leaves no server behind."""
    folder = Path(tempfile.mkdtemp(prefix="txpool-demo-"))
    # The server's own user must pass through to its folder; what is in here has permissions of its own.
    folder.chmod(0o711)
    if spark:
        try:
            prepare_spark(folder)  # what is missing is said at once
        except ConfigurationError:
            shutil.rmtree(folder)
            raise
    console.print(f"[bold]txpool demo[/bold] in {folder}")
    stage = DemoFolder(folder)
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            scenes = list(_Demo(stage, rows, spark=spark, progress=progress).scenes())
    finally:
        stage.close()
        if not keep:
            # The server's data and Spark's scratch are large; configuration, log and ledger stay to be looked at.
            for large in ("postgres", "spark"):
                shutil.rmtree(folder / large, ignore_errors=True)
    console.print(_summary(scenes))
    right = all(scene.right for scene in scenes)
    console.print("All three databases agree after every scene." if right else "[bold red]A count is wrong.")
    console.print(f"The files of this run stay in {folder}" + ("" if keep else " (the server's data with --keep)"))
    return right


class _Demo:
    """Plays the scenes on a stage, and shows what it is doing."""

    def __init__(self, stage: DemoFolder, rows: int | None, *, spark: bool, progress: Progress) -> None:
        self._stage = stage
        self._rows = rows
        self._spark = spark
        self._progress = progress
        self._all = min(rows or ROWS, ROWS)

    def scenes(self) -> Iterator[Scenario]:
        with self._doing("PostgreSQL 18 with two databases, prepared transactions on, and a SQLite file"):
            self._stage.build()
        with self._doing("txpool-recovery init: the decision log, and the ledger's xids table"):
            self._recovery("init")
        txpool.configure(self._stage.conf / "txpool.properties")
        with source(self._stage.folder, self._rows, spark=self._spark) as flights:
            by = "Spark's tasks" if self._spark else "one process"
            title = f"{self._all:,} flights by {by}, totals and a ledger row, in one transaction"
            yield self._scene(1, "commit", title, self._all, lambda: self._commit(flights))
            title = "again, with a partition that fails half-way"
            yield self._scene(2, "a partition fails", title, 0, lambda: self._fail(flights))
        title = "again, in a process that is killed (SIGKILL) before the decision"
        yield self._scene(3, "killed before the decision", title, 0, lambda: self._kill(3, "coordinator.prepared"))
        title = "again, in a process that is killed after the decision and before the commits"
        yield self._scene(
            4, "killed after the decision", title, self._all, lambda: self._kill(4, "coordinator.decided")
        )

    def _commit(self, flights: Flights) -> None:
        write_flights(flights, self._stage.conf, 1)

    def _fail(self, flights: Flights) -> None:
        try:
            write_flights(flights, self._stage.conf, 2, fails=True)
        except Exception as error:
            if HalfWayFailure.__name__ not in f"{type(error).__name__} {error}":
                raise

    def _kill(self, run: int, point: str) -> None:
        """The job in a process that is killed at a point; then what an operator would do."""
        command = [sys.executable, "-m", "txpool.demo.job", str(self._stage.folder), str(run)]
        command += [] if self._rows is None else ["--rows", str(self._rows)]
        command += [] if self._spark else ["--no-spark"]
        environment = os.environ | {"TXPOOL_FAILPOINTS": f"{point}=kill"}
        child = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)  # noqa: S603
        if child.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the job ended by itself, with exit code {child.returncode}:\n{child.stderr[-4000:]}")
        self._progress.console.print("  [dim]$[/dim] txpool-recovery list")
        self._progress.console.print(self._recovery("list"), highlight=False, markup=False, emoji=False)
        with self._doing("  txpool-recovery scan"):
            self._recovery("scan")

    def _recovery(self, command: str) -> str:
        conf = self._stage.conf / "recovery.properties"
        environment = os.environ | {"COLUMNS": str(self._progress.console.width)}
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "recovery", command, "--conf", str(conf)],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode not in (0, 1):  # 1 says that something is in doubt
            raise RuntimeError(f"txpool-recovery {command} failed:\n{done.stdout}{done.stderr}")
        return done.stdout.rstrip()

    def _scene(self, run: int, name: str, title: str, expected: int, act: Callable[[], None]) -> Scenario:
        started = time.monotonic()
        with self._doing(title):
            act()
        seconds = time.monotonic() - started
        return Scenario(name, expected, self._stage.count(run), self._stage.prepared(), seconds)

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        task = self._progress.add_task(what, total=1)
        yield
        self._progress.update(task, completed=1)


def _summary(scenes: list[Scenario]) -> Table:
    table = Table(title="what the databases hold, each asked for itself")
    table.add_column("scene")
    for heading in (
        "flights in PostgreSQL 1",
        "totals in PostgreSQL 2",
        "ledger in SQLite",
        "expected",
        "still prepared",
    ):
        table.add_column(heading, justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for scene in scenes:
        numbers = (scene.counts.flights, scene.counts.totals, scene.counts.ledger, scene.expected, scene.prepared)
        verdict = "[green]right" if scene.right else "[bold red]WRONG"
        table.add_row(scene.title, *(f"{number:,}" for number in numbers), f"{scene.seconds:.1f}", verdict)
    return table
