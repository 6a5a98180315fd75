"""The command `txpool-recovery`, as a process; and what both commands have."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from recovery.cli import ExitCode
from txpool.log import open_log
from txpool.log.base import Heuristic, SideRecord
from txpool.tm.commit.annotations import NOTE
from txpool.xid import make_gtrid

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


def test_a_note_that_the_terminal_has_no_letters_for_hides_no_list(tmp_path: Path) -> None:
    (tmp_path / "orders.properties").write_text(ORDERS)
    recovery = tmp_path / "recovery.properties"
    recovery.write_text(RECOVERY)
    with closing(open_log(f"sqlite:///{tmp_path / 'txlog'}", node="etl-1", create=True)) as log:
        for number, note in enumerate(("счёт", "invoice 42")):
            gtrid = make_gtrid("etl-1", log.incarnation, number)
            log.put_record(SideRecord(NOTE, gtrid, note, 1.0))
            log.record_heuristic(Heuristic(gtrid, "0:orders:L", "orders", "commit", "rolled back"))
    command = [sys.executable, "-m", "recovery", "list", "--conf", str(recovery)]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    process = subprocess.run(command, check=False, capture_output=True, encoding="latin-1", env=env)
    assert process.returncode == ExitCode.HEURISTIC, process.stderr
    assert "\\u0441\\u0447\\u0451\\u0442" in process.stdout
    assert "invoice 42" in process.stdout


@pytest.mark.parametrize("command", ["txpool check", "recovery list --conf"])
def test_an_error_is_told_in_a_terminal_that_says_it_has_no_columns(command: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", *command.split(), str(tmp_path / "nowhere")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "0"},
    )
    assert process.returncode == ExitCode.CONFIGURATION
    assert "No such file" in process.stdout + process.stderr


@pytest.mark.parametrize("module", ["txpool", "recovery"])
def test_the_version(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert process.stdout == f"txpool {txpool.__version__}\n"
