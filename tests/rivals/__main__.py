"""`python -m tests.rivals [--kills N] [--few] [CONTENDER …]` prints the table of docs/explanation/rivals.md.

Every fault at every statement of a transfer, and so many kills at random; or a few faults, since drivers of Spark take
long to start.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.conftest import Databases
from tests.crash.evidence import SEED
from tests.rivals.contenders import BETWEEN_LISTINGS, OVER_SPARK, PACKAGES, installed
from tests.rivals.contest import Contest, Report
from tests.rivals.gate import Fault
from txpool.demo.server import EmbeddedPostgres

#: Behind a COMMIT, or what is in its place; and between two of them.
FEW = ((2, Fault.REPLY_LOST), (2, Fault.EXECUTOR_KILLED), (3, Fault.KILLED_BEFORE))


def a_few(contender: str, databases: Databases, folder: Path) -> Report:
    """A lost reply, a killed executor if there is one, a killed client."""
    databases.empty()
    contest = Contest(contender, databases, folder)
    try:
        for nth, fault in FEW:
            if fault is not Fault.EXECUTOR_KILLED or contender in OVER_SPARK:
                contest.at_statement(nth, fault)
        return contest.report()
    finally:
        contest.close()


def everything(contender: str, databases: Databases, folder: Path, kills: int) -> Report:
    """All faults at all statements of a transfer."""
    databases.empty()
    contest = Contest(contender, databases, folder)
    chance = random.Random(SEED)
    try:
        if contender in BETWEEN_LISTINGS:
            contest.between_listings()
        for fault in Fault:
            if fault is Fault.EXECUTOR_KILLED and contender not in OVER_SPARK:
                continue
            nth = 1
            while contest.at_statement(nth, fault):
                nth += 1
        for _ in range(kills):
            contest.at_random(chance)
        return contest.report()
    finally:
        contest.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rivals", description=__doc__)
    parser.add_argument("contenders", nargs="*", metavar="CONTENDER", help=", ".join(PACKAGES))
    parser.add_argument("--kills", type=int, default=30, help="at random")
    parser.add_argument("--few", action="store_true", help="three faults instead")
    options = parser.parse_args()
    print(f"seed {SEED}\n| | faults | kills | torn | duplicates | stuck |\n|---|---|---|---|---|---|", flush=True)
    with EmbeddedPostgres(databases=("one", "two"), settings={"fsync": "off"}) as server:
        for contender in options.contenders or PACKAGES:
            with tempfile.TemporaryDirectory() as folder:
                if options.few:
                    found = a_few(contender, Databases(server), Path(folder))
                else:
                    found = everything(contender, Databases(server), Path(folder), options.kills)
            counts = [found.faults, found.kills, len(found.torn), len(found.duplicates), len(found.stuck)]
            print(f"| {installed(contender)} | {' | '.join(map(str, counts))} |", flush=True)
            if found.lost:
                print(f"\n{contender} has said that {found.lost} are done, and no database has them", flush=True)


if __name__ == "__main__":
    main()
