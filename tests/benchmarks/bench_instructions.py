"""The instructions of a transaction over one, two and three databases, counted by callgrind, and as a ratio to by hand.

Counted are the client's instructions in user space: Python, libpq and SQLite, not the kernel and not the servers. They
hardly differ between two runs, whatever else the machine does. The absolute numbers change with Python, libpq and the
processor. The ratio does not, so it is kept in `instructions.toml`: with --check, one that has grown by more than 3 % is
an error. Each figure is the difference between a run of N transactions and one of 2N, so that the start cancels out.

    python tests/benchmarks/bench_instructions.py [--check | --keep]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import print_table
from tests.benchmarks.transactions import TABLE, ByHand, Txpool
from txpool.demo.server import EmbeddedPostgres

TRANSACTIONS = 150
WARM_UP = 30
DATABASES = ("one", "two", "three")
KEPT = Path(__file__).with_name("instructions.toml")
#: How much a ratio may grow.
GROWTH = 1.03
_COLLECTED = re.compile(r"Collected : (\d+)")


def _child(variant: str, transactions: int, folder: str, password: str, urls: list[str]) -> None:
    """Do so many transactions, in the process that callgrind watches."""
    if variant == "by hand":
        dsns = [psycopg.conninfo.make_conninfo(url, password=password) for url in urls]
        transaction = ByHand(dsns, Path(folder)).transaction
    else:
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        datasources = [
            txpool.DataSource(name=name, driver="psycopg", mode="xa", url=url, password=password)
            for name, url in zip(DATABASES, urls, strict=False)
        ]
        transaction = Txpool(datasources).transaction
    for _ in range(WARM_UP + transactions):
        transaction()


def _instructions(variant: str, urls: list[str], password: str, output: str = "/dev/null") -> float:
    """The instructions of one transaction over these databases."""
    counts = []
    for transactions in (TRANSACTIONS, 2 * TRANSACTIONS):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"),
                *(sys.executable, __file__, "--child", variant, str(transactions), folder, password, *urls),
            ]
            environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"}
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = _COLLECTED.search(ended.stderr)
        if ended.returncode != 0 or found is None:
            raise RuntimeError(f"the run of {variant} failed: {ended.stderr}")
        counts.append(int(found[1]))
    return (counts[1] - counts[0]) / TRANSACTIONS


def _measure(server: EmbeddedPostgres) -> dict[str, dict[str, float]]:
    """By number of databases, the instructions of each variant."""
    for name in DATABASES:
        with psycopg.connect(server.dsn(name)) as connection:
            connection.execute(TABLE)
    runs = [(count, variant) for count in (3, 2, 1) for variant in ("by hand", "txpool")]

    def measure(run: tuple[int, str]) -> float:
        return _instructions(run[1], [server.url(name) for name in DATABASES[: run[0]]], server.password)

    # Side by side: what is counted does not depend on the clock. Each run has a row of its own database or waits.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        counted = dict(zip(runs, threads.map(measure, runs), strict=True))
    return {DATABASES[n - 1]: {v: counted[n, v] for v in ("by hand", "txpool")} for n in (1, 2, 3)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="an error where a ratio has grown")
    arguments.add_argument("--keep", action="store_true", help="keep the ratios")
    options = arguments.parse_args()
    with EmbeddedPostgres(databases=DATABASES) as server:
        counted = _measure(server)
    kept = tomllib.loads(KEPT.read_text())["ratio"] if KEPT.exists() else {}
    ratios = {name: each["txpool"] / each["by hand"] for name, each in counted.items()}
    print_table(
        "instructions of a transaction, by number of databases",
        ["", "by hand", "txpool", "ratio", "kept"],
        [
            [name, f"{each['by hand']:,.0f}", f"{each['txpool']:,.0f}", f"{ratios[name]:.3f}", f"{kept.get(name, 0)}"]
            for name, each in counted.items()
        ],
    )
    if options.keep:
        lines = [f"{name} = {ratio:.3f}" for name, ratio in ratios.items()]
        KEPT.write_text("\n".join(["[ratio]", *lines, ""]))
    grown = [name for name, ratio in ratios.items() if name in kept and ratio > kept[name] * GROWTH]
    if options.check and grown:
        sys.exit(f"the ratio to by hand has grown by more than {GROWTH - 1:.0%} over {', '.join(grown)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
    else:
        main()
