"""What every benchmark says: the machine, the versions, medians with their spread, and ratios within one run.

Variants are measured in turn, round by round, so that a machine whose speed drifts moves them all alike; the ratio is
the median of the rounds' ratios. Where a benchmark says how many transactions a round has, it also says what one of
them costs in processor time, its own and its servers': that tells more than the clock where other work is going on,
and where client and server share the same few cores it is what bounds the throughput.
"""

from __future__ import annotations

import os
import platform
import resource
import sqlite3
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import psycopg_pool
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tests.benchmarks.servers import Server


def machine() -> str:
    """Processor, cores, kernel and versions, in one line."""
    model = "unknown processor"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = f"Python {platform.python_version()}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})"
    versions += f", psycopg_pool {psycopg_pool.__version__}, SQLite {sqlite3.sqlite_version}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, {versions}"


_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Processor time in microseconds, and how often this process has gone to sleep."""

    user: float = 0.0
    system: float = 0.0
    server: float = 0.0
    sleeps: float = 0.0

    @classmethod
    def so_far(cls, servers: Iterable[Server]) -> Cost:
        """Of this process and these servers, since they began."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime * 1e6, used.ru_stime * 1e6, _server_time(servers), used.ru_nvcsw)

    def per(self, transactions: int, before: Cost) -> Cost:
        """What one of so many transactions since then has cost."""
        mine, earlier = vars(self), vars(before)
        return Cost(**{name: (mine[name] - earlier[name]) / transactions for name in mine})

    @property
    def total(self) -> float:
        return self.user + self.system + self.server


def _server_time(servers: Iterable[Server]) -> float:
    """Microseconds that the servers' processes have run; 0 where the system does not tell by process."""
    pids = {str(server.pid) for server in servers}
    nanoseconds = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            parent = fields[1]
            if process.name in pids:  # its sessions that have ended
                nanoseconds += (int(fields[13]) + int(fields[14])) * 1_000_000_000 // _TICKS
            # PostgreSQL's sessions are processes of their own, MariaDB's are threads.
            if process.name in pids or parent in pids:
                for thread in process.glob("task/*/schedstat"):
                    nanoseconds += int(thread.read_text().split()[0])
        except OSError:  # it has ended
            continue
    return nanoseconds / 1000


def compare(
    title: str,
    variants: Mapping[str, Callable[[], float]],
    *,
    rounds: int,
    unit: str,
    bound: str = "",
    transactions: int = 0,
    servers: Sequence[Server] = (),
) -> dict[str, float]:
    """Measure each variant once a round, print the table, and return each one's ratio to the first variant.

    `transactions` is how many a round has: with it, the table has what one of them costs.
    """
    figures: dict[str, list[float]] = {name: [] for name in variants}
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    for measure in variants.values():
        measure()  # warm up
    for _ in range(rounds):
        for name, measure in variants.items():
            before = Cost.so_far(servers)
            figures[name].append(measure())
            costs[name].append(Cost.so_far(servers).per(transactions or 1, before))
    first = next(iter(variants))
    ratios = {name: _ratio(values, figures[first]) for name, values in figures.items()}
    headings = ["", f"median {unit}", "min", "max", f"ratio to {first}"]
    if transactions:
        headings += ["µs CPU: user", "system", "server", "all, ratio", "sleeps"]
    rows = []
    for name, values in figures.items():
        cells = [f"{value:,.2f}" for value in (statistics.median(values), min(values), max(values), ratios[name])]
        if transactions:
            for part in ("user", "system", "server"):
                cells.append(f"{statistics.median(getattr(cost, part) for cost in costs[name]):,.0f}")
            cells.append(f"{_ratio([c.total for c in costs[name]], [c.total for c in costs[first]]):.2f}")
            cells.append(f"{statistics.median(cost.sleeps for cost in costs[name]):.1f}")
        rows.append([name, *cells])
    print_table(f"{title}, {rounds} rounds" + (f" (wanted: {bound})" if bound else ""), headings, rows)
    return ratios


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table below a line about the machine."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=140)
    console.print(f"{machine()}; load {os.getloadavg()[0]:.1f}", style="dim", highlight=False)
    console.print(table)
    sys.stdout.flush()


def _ratio(values: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(values, base, strict=True))
