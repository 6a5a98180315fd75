"""How the benchmark of instructions reads callgrind's dumps, and when its check fails."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.bench_instructions import grown, kept_for, kept_text, per_transaction, unguarded
from tests.benchmarks.callgrind import count, parts
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.conftest import Require

PROGRAM = """
from tests.benchmarks.callgrind import mark

def work(times):
    for _ in range(times):
        len("a")

work(100)
mark()
for _ in range(2):
    work(1000)
    mark()
work(5000)
"""

DUMP = """# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 31917
cmd:  python counted.py
part: {part}


desc: I1 cache:
desc: Timerange: Basic block 0 - 7422236
desc: Trigger: {trigger}

positions: line
events: Ir
summary: {total}

fl=(1) /usr/lib/libpython3.11.so
fn=(1) _PyEval_EvalFrameDefault
0 {total}

totals: {total}
"""


def dump(part: int, total: int, trigger: str = "--dump-before=getpgrp") -> str:
    return DUMP.format(part=part, total=total, trigger=trigger)


def test_callgrind_counts_what_lies_between_the_marks(require: Require, tmp_path: Path) -> None:
    require(shutil.which("valgrind"), "valgrind")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    _start, *runs = count([str(program)], os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"})
    ((first, second),) = per_transaction([0, *runs], transactions=1000, rounds=2)
    assert first == pytest.approx(second, rel=0.1)
    assert 50 < first < 2000  # instructions of a turn of the loop: some 350 with Python 3.11


def test_parts_are_in_the_order_of_the_marks_without_what_follows_the_last() -> None:
    dumps = [dump(10, 3), dump(11, 999, "Program termination"), dump(2, 2), dump(1, 1)]
    assert parts(dumps) == [1, 2, 3]


def test_what_is_no_dump_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no dump of its counts"):
        parts([dump(1, 1), "valgrind: out of memory"])


def test_a_figure_is_the_mean_of_a_round() -> None:
    # Over each of two numbers of databases the warm-up, then two rounds.
    parts_of_both = [50_000, 1_310, 1_330, 70_000, 5_690, 5_710]
    assert per_transaction(parts_of_both, transactions=10, rounds=2) == [[131.0, 133.0], [569.0, 571.0]]


@pytest.mark.parametrize("count", [0, 2, 4])
def test_parts_that_are_missing_are_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="parts"):
        per_transaction([1] * count, transactions=10, rounds=2)


def test_a_ratio_may_grow_by_three_percent() -> None:
    kept = {"one": 1.5, "two": 1.0, "three": 0.9}
    assert grown({"one": 1.544, "two": 1.029, "three": 0.5}, kept) == []
    assert grown({"one": 1.546, "two": 1.029, "three": 0.93}, kept) == [
        "that over one database(s) is 1.546, and was 1.500",
        "that over three database(s) is 0.930, and was 0.900",
    ]


def test_a_ratio_that_has_shrunk_is_to_be_kept() -> None:
    kept = {"one": 3.0, "two": 1.0}
    assert unguarded({"one": 2.0, "two": 0.98, "three": 0.5}, kept) == [
        "that over one database(s) is 2.000, and 3.000 is kept"
    ]


def test_a_ratio_that_is_not_kept_fails_the_check() -> None:
    assert grown({"one": 1.0, "two": 1.0}, {"one": 1.0}) == ["that over two database(s) is not kept: see --keep"]


def test_ratios_are_kept_for_each_version_of_python() -> None:
    kept = {"3.11": {"one": 2.9, "two": 1.7}, "3.9": {"one": 2.5, "two": 1.8}}
    by_driver = {"psycopg": kept, "pymysql": {"3.12": {"one": 2.0}}}
    text = kept_text(by_driver)
    assert tomllib.loads(text) == by_driver
    assert text.index("3.9") < text.index("3.11")
    assert kept_for("3.9", kept) == kept["3.9"]
    assert kept_for("3.14", kept) == {"one": 2.9, "two": 1.8}
    assert kept_for("3.14", {}) == {}
