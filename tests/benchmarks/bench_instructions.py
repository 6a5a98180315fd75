"""The instructions of a transaction over one, two and three databases, beside its time, and as a ratio to by hand.

Counted are the client's instructions in user space by callgrind: Python, libpq and SQLite, not the kernel and not the
servers. These stand in memory, and what they answer is gathered on its way: how many answers a client reads at once
would else depend on the disk and the load. A round is some hundred transactions, and its figure is their mean. The
numbers change with Python, libpq and the processor. The ratio hardly changes but with the release of Python, so it is
kept for each driver and release in `instructions.toml`: with --check, one that has grown by more than 3 % is an error.
Kept and compared is the least of the rounds. A release without kept ratios is compared with the largest of the others.
The times are medians, taken in turn without callgrind, over servers on the disk; if the machine is busy, they tell
little, and --check takes none.
Over psycopg the databases are PostgreSQL's, over the other drivers MariaDB's.

    python tests/benchmarks/bench_instructions.py [--driver psycopg pymysql mysqlclient] [--check | --keep]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.callgrind import count
from tests.benchmarks.counted import PASSWORD
from tests.benchmarks.gathering import gathering
from tests.benchmarks.report import print_table
from tests.benchmarks.running import Place, datasources, place_in
from tests.benchmarks.servers import Server
from tests.benchmarks.transactions import DRIVERS, by_hand, with_txpool

TRANSACTIONS = 50
ROUNDS = 3
DATABASES = ("one", "two", "three")
VARIANTS = ("by hand", "txpool")
KEPT = Path(__file__).with_name("instructions.toml")
#: How much a ratio may grow.
GROWTH = 1.03
#: By number of databases, in the words of DATABASES.
Ratios = Mapping[str, float]


def per_transaction(parts: Sequence[int], transactions: int, rounds: int) -> list[list[float]]:
    """By number of databases, and by round, the instructions of one transaction, from the parts that `counted` marks.

    Over each number of databases there are the part up to the end of the warm-up, and one for each round.
    """
    width = 1 + rounds
    if not parts or len(parts) % width:
        raise ValueError(f"{len(parts)} parts cannot be {rounds} rounds each")
    return [[part / transactions for part in parts[begin + 1 : begin + width]] for begin in range(0, len(parts), width)]


def kept_for(version: str, kept: Mapping[str, Ratios]) -> Ratios:
    """The kept ratios of a version of Python; of one that has none, the largest of the other versions' ratios."""
    if version in kept:
        return kept[version]
    names = dict.fromkeys(name for ratios in kept.values() for name in ratios)
    return {name: max(ratios[name] for ratios in kept.values() if name in ratios) for name in names}


def kept_text(kept: Mapping[str, Mapping[str, Ratios]]) -> str:
    """The file of the kept ratios, by driver and version of Python."""
    lines = ["# Written by bench_instructions.py --keep: by driver, release of Python and number of databases."]
    for driver, versions in sorted(kept.items()):
        for version in sorted(versions, key=lambda each: [int(number) for number in each.split(".")]):
            ratios = (f"{name} = {ratio:.3f}" for name, ratio in versions[version].items())
            lines += ["", f'[{driver}."{version}"]', *ratios]
    return "\n".join([*lines, ""])


def grown(ratios: Ratios, kept: Ratios) -> list[str]:
    """What --check objects to, in words: the ratios above the kept ones, and those that nobody has kept."""
    found = [f"that over {name} database(s) is not kept: see --keep" for name in ratios if name not in kept]
    return found + [
        f"that over {name} database(s) is {ratio:.3f}, and was {kept[name]:.3f}"
        for name, ratio in ratios.items()
        if name in kept and ratio > kept[name] * GROWTH
    ]


def unguarded(ratios: Ratios, kept: Ratios) -> list[str]:
    """The ratios that have shrunk by more than may grow again unseen: keep them."""
    return [
        f"that over {name} database(s) is {ratio:.3f}, and {kept[name]:.3f} is kept"
        for name, ratio in ratios.items()
        if name in kept and ratio * GROWTH < kept[name]
    ]


def _url(server: Server, port: int, database: str) -> str:
    """The url of a server's database by way of this port."""
    return server.url(database).replace(f":{server.port}/", f":{port}/")


def _count(servers: Mapping[str, Server]) -> dict[str, dict[str, list[list[float]]]]:
    """By driver and variant, what `per_transaction` returns."""

    def measure(job: tuple[str, str]) -> list[list[float]]:
        driver, variant = job
        server = servers[driver]
        # The hashes of texts decide how dictionaries collide.
        environment = os.environ | {PASSWORD: server.password, "PYTHONHASHSEED": "0"}
        with tempfile.TemporaryDirectory() as folder, gathering(server.port) as port:
            program = str(Path(__file__).with_name("counted.py"))
            urls = [_url(server, port, database) for database in DATABASES]
            arguments = [program, driver, variant, str(TRANSACTIONS), str(ROUNDS), folder, *urls]
            return per_transaction(count(arguments, environment), TRANSACTIONS, ROUNDS)

    jobs = [(driver, variant) for variant in reversed(VARIANTS) for driver in servers]  # what takes long comes first
    # Side by side: what is counted does not depend on the clock.
    with ThreadPoolExecutor(2) as threads:
        counted = dict(zip(jobs, threads.map(measure, jobs), strict=True))
    return {driver: {variant: counted[driver, variant] for variant in VARIANTS} for driver in servers}


def _milliseconds(transaction: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(TRANSACTIONS):
        transaction()
    return (time.perf_counter() - started) / TRANSACTIONS * 1000


def _time(place: Place, server: Server) -> dict[str, list[list[float]]]:
    """By variant, number of databases and round, the milliseconds of one transaction."""
    times: dict[str, list[list[float]]] = {variant: [] for variant in VARIANTS}
    place.configure_log()
    for names in (DATABASES[:number] for number in range(1, len(DATABASES) + 1)):
        with datasources(dict.fromkeys(names, server), driver=place.driver) as sources:
            hand = by_hand(place.driver, [(server.url(name), server.password) for name in names], place.folder)
            transactions = {"by hand": hand.transaction, "txpool": with_txpool(sources)}
            for variant, transaction in transactions.items():
                _milliseconds(transaction)  # warm up
                times[variant].append([])
            for _ in range(ROUNDS + 2):
                for variant, transaction in transactions.items():
                    times[variant][-1].append(_milliseconds(transaction))
            hand.close()
    return times


def _paired(measured: Mapping[str, list[list[float]]]) -> list[list[float]]:
    """By number of databases: the medians of each variant, then the ratios of the rounds: median, least, largest."""
    rows = []
    for hand, ours in zip(*(measured[variant] for variant in VARIANTS), strict=True):
        ratios = [mine / other for mine, other in zip(ours, hand, strict=True)]
        medians = [statistics.median(each) for each in (hand, ours, ratios)]
        rows.append([*medians, min(ratios), max(ratios)])
    return rows


def _cells(figures: Sequence[float], form: str) -> list[str]:
    if not figures:
        return []
    hand, ours, ratio, least, largest = figures
    return [f"{hand:{form}}", f"{ours:{form}}", f"{ratio:.3f}", f"{least:.3f} to {largest:.3f}"]


_HEADINGS = ("databases", "by hand", "txpool", "ratio", "of the rounds")


def _count_each(drivers: Sequence[str]) -> dict[str, list[list[float]]]:
    with ExitStack() as stack:
        servers = {}
        for driver in drivers:
            place = stack.enter_context(place_in("memory", driver))
            servers[driver] = stack.enter_context(place.servers(DATABASES))["one"]
        return {driver: _paired(counted) for driver, counted in _count(servers).items()}


def _time_one(driver: str) -> list[list[float]]:
    with place_in("disk", driver) as place, place.servers(DATABASES) as servers:
        return _paired(_time(place, servers["one"]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--driver", choices=DRIVERS, nargs="+", default=["psycopg"])
    arguments.add_argument("--check", action="store_true", help="an error where a ratio has grown")
    arguments.add_argument("--keep", action="store_true", help="keep the ratios")
    options = arguments.parse_args()
    version = ".".join(map(str, sys.version_info[:3]))  # 3.11.2 and 3.11.7 differ by 4 %
    all_kept = tomllib.loads(KEPT.read_text()) if KEPT.exists() else {}
    objections = []
    for driver, counted in _count_each(options.driver).items():
        kept = kept_for(version, all_kept.get(driver, {}))
        timed = [] if options.check else _time_one(driver)
        print_table(
            f"one row in each database, {driver}, log included, {ROUNDS} rounds of {TRANSACTIONS}",
            [*_HEADINGS, "kept", *(f"ms: {heading}" for heading in _HEADINGS[1:] if timed)],
            [
                [name, *_cells(instructions, ",.0f"), f"{kept.get(name, 0):.3f}", *_cells(milliseconds, ".2f")]
                for name, instructions, milliseconds in zip_longest(DATABASES, counted, timed, fillvalue=())
            ],
        )
        ratios = {name: figures[3] for name, figures in zip(DATABASES, counted, strict=True)}
        if options.keep:
            all_kept[driver] = all_kept.get(driver, {}) | {version: ratios}
            KEPT.write_text(kept_text(all_kept))
        elif remarks := unguarded(ratios, kept):
            print(f"a growth may go unseen until --keep is run: {'; '.join(remarks)}")
        objections += [f"{driver}, {each}" for each in grown(ratios, kept)]
    if options.check and objections:
        sys.exit(f"the ratio to by hand has grown by more than {GROWTH - 1:.0%}: {'; '.join(objections)}")


if __name__ == "__main__":
    main()
