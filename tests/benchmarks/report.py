"""What every benchmark says: the machine, the versions, medians with their spread, and ratios within one run.

Variants are measured in turn, round by round, so that a machine whose speed drifts moves them all alike; the ratio is
the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
from collections.abc import Callable, Mapping

import psycopg
import psycopg_pool
from rich.console import Console
from rich.table import Table


def machine() -> str:
    """Processor, cores, kernel and versions, in one line."""
    model = "unknown processor"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = f"Python {platform.python_version()}, psycopg {psycopg.__version__}"
    versions += f", psycopg_pool {psycopg_pool.__version__}, SQLite {sqlite3.sqlite_version}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, {versions}"


def compare(
    title: str, variants: Mapping[str, Callable[[], float]], *, rounds: int, unit: str, bound: str = ""
) -> dict[str, float]:
    """Measure each variant once a round, print the table, and return each one's ratio to the first variant."""
    figures: dict[str, list[float]] = {name: [] for name in variants}
    for measure in variants.values():
        measure()  # warm up
    for _ in range(rounds):
        for name, measure in variants.items():
            figures[name].append(measure())
    first = next(iter(variants))
    ratios = {
        name: statistics.median(mine / base for mine, base in zip(values, figures[first], strict=True))
        for name, values in figures.items()
    }
    table = Table(title=f"{title}, {rounds} rounds" + (f" (wanted: {bound})" if bound else ""))
    for heading in ("", f"median {unit}", "min", "max", f"ratio to {first}"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in figures.items():
        row = (statistics.median(values), min(values), max(values))
        table.add_row(name, *(f"{value:,.2f}" for value in row), f"{ratios[name]:.2f}")
    console = Console(width=120)
    console.print(machine(), style="dim", highlight=False)
    console.print(table)
    sys.stdout.flush()
    return ratios
