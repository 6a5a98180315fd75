"""The command `txpool-recovery`, as a process; and what both commands have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import txpool

ORDERS = "driver = psycopg\nurl = postgresql://a@127.0.0.1:1/b\npassword = secret\n"
RECOVERY = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\ndatasources = orders.properties\n"


def test_a_warning_is_a_line_without_the_code_that_it_comes_from(tmp_path: Path) -> None:
    orders, recovery = tmp_path / "orders.properties", tmp_path / "recovery.properties"
    orders.write_text(ORDERS)
    orders.chmod(0o644)
    recovery.write_text(RECOVERY)
    command = [sys.executable, "-m", "recovery", "scan", "--conf", str(recovery)]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    told = [line for line in process.stderr.splitlines() if "others can read" in line]
    assert told, process.stderr
    assert all(line.startswith(f"warning: {orders}: others can read this file") for line in told)
    assert "SecurityWarning" not in process.stderr


@pytest.mark.parametrize("module", ["txpool", "recovery"])
def test_the_version(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert process.stdout == f"txpool {txpool.__version__}\n"
