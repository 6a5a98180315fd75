"""Explore by hand: ``python -m tests.crash.explorer [--depth N] [--only NAME] [--limit N] [--replay STRING]``."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.crash.explorer.explore import Explorer
from tests.crash.explorer.scenarios import SCENARIOS, Scenario, deeper
from tests.crash.explorer.trace import tell, trace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.explorer", description=__doc__)
    parser.add_argument("--depth", type=int, default=0, help="0 is what the tests do; each step adds faults")
    parser.add_argument("--only", help="one scenario, by name")
    parser.add_argument("--limit", type=int, default=2_000_000, help="states a scenario")
    parser.add_argument("--replay", help="a scenario and its choices, as a failing run prints them")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.replay:
        name, _, choices = options.replay.partition("/")
        scenario = deeper(_named(name), max(options.depth, 4))
        lines, problem = tell(Explorer(scenario), choices.split())
        print(*lines, sep="\n")
        return 1 if problem else 0
    failed = False
    for scenario in [_named(options.only)] if options.only else SCENARIOS:
        explorer = Explorer(deeper(scenario, options.depth))
        finding = explorer.search(options.limit)
        print(finding, flush=True)
        if finding.problem:
            failed = True
            print(trace(explorer, finding), flush=True)
    return 1 if failed else 0


def _named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


if __name__ == "__main__":
    sys.exit(main())
