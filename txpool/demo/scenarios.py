"""The demo's scenarios: a commit, a failure half-way, a kill before the decision, and a kill after it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import txpool
from txpool.demo.flights import ROWS
from txpool.demo.folder import Counts, DemoFolder
from txpool.demo.job import (
    Flights,
    HalfWayFailure,
    java_of_this_process,
    open_flights,
    prepare_spark,
    stop_session_of_killed,
    write_flights,
)
from txpool.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Scenario:
    """The result of one run of the job: what the databases should have of it, and what they have."""

    title: str
    expected: int
    counts: Counts
    prepared: int
    seconds: float

    @property
    def right(self) -> bool:
        return self.counts.agree and self.counts.flights == self.expected and self.prepared == 0


def run_scenarios(*, rows: int | None, spark: bool, keep: bool, console: Console) -> bool:
    """Run all scenarios, print their results, and return whether all counts were right. Stops the server at the end."""
    folder = Path(tempfile.mkdtemp(prefix="txpool-demo-"))
    # The server's user has to pass through this folder to its own. Files in this folder have stricter permissions.
    folder.chmod(0o711)
    if spark:
        try:
            prepare_spark(folder)  # raises before the server is started, if something is missing
        except ConfigurationError:
            shutil.rmtree(folder)
            raise
    console.print(f"[bold]txpool demo[/bold] in {folder}", soft_wrap=True)
    demo_folder = DemoFolder(folder)
    try:
        demo = _Demo(demo_folder, rows, spark=spark, console=console)
        scenarios = list(demo.play_all())
    finally:
        demo_folder.close()
        if not keep:
            # The data of the server and Spark's files are large. Configuration, log and ledger stay for the user.
            for large in ("postgres", "spark"):
                shutil.rmtree(folder / large, ignore_errors=True)
    console.print(_summary(scenarios))
    right = all(scenario.right for scenario in scenarios)
    console.print("All three databases agree after every scenario." if right else "[bold red]A count is wrong.")
    stay = "" if keep else " (the server's data with --keep)"
    console.print(f"The files of this run stay in {folder}{stay}.", soft_wrap=True)
    return right


class _Demo:
    """Plays the scenarios in a folder, and shows the progress."""

    def __init__(self, folder: DemoFolder, rows: int | None, *, spark: bool, console: Console) -> None:
        self._folder = folder
        self._rows = rows
        self._spark = spark
        self._console = console
        self._all = min(rows or ROWS, ROWS)

    def play_all(self) -> Iterator[Scenario]:
        with self._show("PostgreSQL 18 with two databases, and a SQLite file"):
            self._folder.build()
        with self._show("txpool-recovery init: the decision log, the ledger's xids table"):
            self._recovery("init")
        txpool.configure(self._folder.conf / "txpool.properties")
        with open_flights(self._folder.folder, self._rows, spark=self._spark) as flights:
            by = "Spark's tasks" if self._spark else "one process"
            self._console.print(f"One transaction: {self._all:,} flights by {by}, totals, a ledger row.")
            yield self._play(1, "commit", "it commits", self._all, lambda: self._commit(flights))
            title = "again, and a partition fails half-way"
            yield self._play(2, "a partition fails", title, 0, lambda: self._fail(flights))
        title = "again, and its process is killed (SIGKILL) before the decision"
        yield self._play(3, "killed undecided", title, 0, lambda: self._kill(3, "coordinator.prepared"))
        title = "again, and its process is killed after the decision"
        yield self._play(4, "killed decided", title, self._all, lambda: self._kill(4, "coordinator.decided"))

    def _commit(self, flights: Flights) -> None:
        write_flights(flights, self._folder.conf, 1)

    def _fail(self, flights: Flights) -> None:
        # Each partition has more rows than that.
        fails_after = min(1000, (self._all - 1) // 4)
        try:
            write_flights(flights, self._folder.conf, 2, fails_after=fails_after)
        except Exception as error:
            if HalfWayFailure.__name__ not in f"{type(error).__name__} {error}":
                raise

    def _kill(self, run: int, point: str) -> None:
        """Run the job in a process that a failpoint kills, then list and scan as an operator would."""
        folder = self._folder.folder
        options = [] if self._rows is None else ["--rows", str(self._rows)]
        options += [] if self._spark else ["--no-spark"]
        process = subprocess.run(
            [sys.executable, "-m", "txpool.demo.job", str(folder), str(run), *options],
            env=os.environ | java_of_this_process() | {"TXPOOL_FAILPOINTS": f"{point}=kill"},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(
                f"the job ended by itself, with exit code {process.returncode}:\n{process.stdout[-4000:]}"
            )
        stop_session_of_killed()
        self._console.print("  [dim]$[/dim] txpool-recovery list")
        self._console.print(self._recovery("list"), highlight=False, markup=False, emoji=False)
        with self._show("  txpool-recovery scan"):
            self._recovery("scan")

    def _recovery(self, command: str) -> str:
        conf = self._folder.conf / "recovery.properties"
        environment = os.environ | {"COLUMNS": str(self._console.width)}
        process = subprocess.run(
            [sys.executable, "-m", "recovery", command, "--conf", str(conf)],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        if process.returncode not in (0, 1):  # 1 means that something is in doubt
            raise RuntimeError(f"txpool-recovery {command} failed:\n{process.stdout}{process.stderr}")
        return process.stdout.rstrip()

    def _play(self, run: int, name: str, title: str, expected: int, act: Callable[[], None]) -> Scenario:
        started = time.monotonic()
        with self._show(title):
            act()
        seconds = time.monotonic() - started
        return Scenario(name, expected, self._folder.count(run), self._folder.prepared(), seconds)

    @contextmanager
    def _show(self, what: str) -> Iterator[None]:
        """Show what is done, in a terminal while it lasts; a line of its own once it is done."""
        started = time.monotonic()
        with self._console.status(what) if self._console.is_terminal else nullcontext():
            yield
        self._console.print(f"[green]✓[/green] {what}  [dim]{time.monotonic() - started:.1f} s[/dim]")


def _summary(scenarios: list[Scenario]) -> Table:
    """The table of all scenarios, in 80 columns."""
    table = Table(
        title="The flights that each database holds of a run",
        caption="flights and totals: PostgreSQL; ledger: SQLite; open: still prepared",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("scenario", no_wrap=True)
    for heading in ("expected", "flights", "totals", "ledger", "open", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for scenario in scenarios:
        counts = scenario.counts
        numbers = (scenario.expected, counts.flights, counts.totals, counts.ledger, scenario.prepared)
        verdict = "[green]right" if scenario.right else "[bold red]WRONG"
        table.add_row(scenario.title, *(f"{number:,}" for number in numbers), f"{scenario.seconds:.1f}", verdict)
    return table
