"""What bounds a Spark job of very many partitions, and very many coordinators on one log: measured costs, simulated.

The costs are measured in a few rounds, and their medians and spread printed: processor time and bytes, and the time of
a flush. `--keep` writes the medians into tests/benchmarks/scale.toml. Then `tests.models.scale` simulates what nobody
has the machines for. `--kept` measures nothing.

    python tests/benchmarks/bench_scale.py [--rounds N] [--keep | --kept]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import machine, print_table
from tests.benchmarks.running import place_in
from tests.benchmarks.scale_costs import SIZES, measure
from tests.models.scale import KEPT, Costs, Phase, job, kept_costs, shared_log

PARTITIONS = (1_000, 10_000, 100_000)
COORDINATORS = 1_000
RATES = (1_000, 3_000, 5_000)
#: Of each coordinator: more than it forgets in one batch.
_DECISIONS = 150
_CORES = 2
_MEGABYTE = 1_000_000


def measured(rounds: int) -> tuple[Costs, str]:
    """The medians of some rounds, and them with their spread as TOML."""
    found = []
    with place_in("disk") as place:
        place.configure_log()
        for _ in range(rounds):
            found.append(measure(place))
    lines = [f'machine = "{machine()}"', f"rounds = {rounds}", f"branches = {list(SIZES)}", "", "[costs]"]
    medians = {}
    for name in (each.name for each in fields(Costs)):
        values = [getattr(each, name) for each in found]
        medians[name] = statistics.median(values)
        lines.append(f"{name} = {medians[name]:.4g} # {min(values):.4g} to {max(values):.4g}")
    return Costs(**medians), "\n".join([*lines, ""])


def _cells(phase: Phase) -> Sequence[str]:
    used = ", ".join(f"{name} {share:.0%}" for name, share in phase.used.items())
    return [f"{phase.seconds:,.1f}", f"{phase.flushes:,}", used]


def _jobs(costs: Costs) -> None:
    headings = [
        "partitions",
        "s to prepare",
        "flushes",
        "used",
        "s to end",
        "flushes",
        "used",
        "slots",
        "record, driver",
    ]
    rows = []
    for partitions in PARTITIONS:
        found = job(costs, partitions, cores=_CORES)
        megabytes = [each / _MEGABYTE for each in (found.slot_bytes, found.record_bytes, found.driver_bytes)]
        slots, record, driver = (f"{each:,.1f} MB" for each in megabytes)
        cells = [*_cells(found.prepared), *_cells(found.ended), slots, f"{record}, {driver}"]
        rows.append([f"{partitions:,}", *cells])
    print_table(f"a job over one database, 40 tasks at a time, a server of {_CORES} cores: simulated", headings, rows)


def _logs(costs: Costs) -> None:
    headings = ["a second", "round trips", "flushes", "rows at most", "median", "99 %", "used"]
    rows = []
    for rate in RATES:
        found = shared_log(costs, COORDINATORS, _DECISIONS, rate=rate, cores=_CORES)
        waits = [f"{found.wait(percent):,.0f} µs" for percent in (50, 99)]
        used = ", ".join(f"{name} {share:.0%}" for name, share in found.used.items())
        each = [f"{count / found.decisions:.2f}" for count in (found.round_trips, found.flushes)]
        rows.append([f"{rate:,}", *each, f"{found.most_rows:,}", *waits, used])
    memory = 2 * COORDINATORS * costs.connection_bytes / _MEGABYTE
    title = f"{COORDINATORS:,} coordinators on one log of {_CORES} cores: simulated, by decision"
    print_table(title, headings, rows)
    print(f"{2 * COORDINATORS:,} connections, {memory:,.0f} MB of memory of their own")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--keep", action="store_true", help=f"write the costs into {KEPT.name}")
    arguments.add_argument("--kept", action="store_true", help="simulate by the costs that are kept there")
    options = arguments.parse_args()
    if options.kept:
        costs = kept_costs()
    else:
        costs, text = measured(options.rounds)
        print(text)
        if options.keep:
            KEPT.write_text(text)
    _jobs(costs)
    _logs(costs)


if __name__ == "__main__":
    main()
