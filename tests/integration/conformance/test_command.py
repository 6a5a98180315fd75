"""`txpool check --conformance`: the table, JSON, exit codes, and the commands that kill and start a server."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from txpool.conformance.command import run_file
from txpool.conformance.kit import CASES
from txpool.process.exit_codes import TxpoolExitCode

if TYPE_CHECKING:
    from tests.conftest import Databases

PASSWORD = "TXPOOL_TEST_KIT_PASSWORD"  # the name of a variable


@pytest.fixture
def files(databases: Databases, tmp_path: Path) -> Path:
    """Files of three datasources, and one of recovery that names them."""
    os.environ[PASSWORD] = databases.server.password
    text = f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:{PASSWORD}}}\n"
    (tmp_path / "orders.properties").write_text(text)
    (tmp_path / "a-long-name-of-a-datasource.properties").write_text(f"{text}mode = cmr\n")
    (tmp_path / "ledger.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n")
    (tmp_path / "ledger.db").touch()
    names = "orders.properties, a-long-name-of-a-datasource.properties, ledger.properties"
    recovery = f"node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = {names}\n"
    (tmp_path / "recovery.properties").write_text(recovery)
    return tmp_path


def check(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "txpool", "check", str(path), "--conformance", *options]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.costly
def test_the_table_is_readable_where_it_is_piped(files: Path) -> None:
    done = check(files / "recovery.properties")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    table = done.stdout.split("\norders, ")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert "\x1b" not in done.stdout
    text = " ".join(done.stdout.split())
    assert "prepare, kill the server, finish: no server was given" in text
    assert done.stdout.count("passed") == 15 + 2 * 10
    assert "FAILED" not in done.stdout
    assert not (files / "txlog").exists()


def test_a_terminal_shows_which_case_has_ended(files: Path) -> None:
    path = files / "ledger.properties"
    shown = Console(file=StringIO(), force_terminal=True, width=200)
    run_file(path, kill_command=None, start_command=None, patience=30.0, console=shown)
    assert f"{len(CASES)} of {len(CASES)} cases; an owner that hangs: passed" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_json(files: Path) -> None:
    done = check(files / "ledger.properties", "--json")
    (found,) = json.loads(done.stdout)["datasources"]
    assert done.returncode == 0
    assert (found["name"], found["mode"], found["trouble"], found["left"]) == ("ledger", "cmr", "", [])
    assert [each["case"] for each in found["cases"]] == [case.name for case in CASES]
    assert {each["verdict"] for each in found["cases"]} == {"passed", "inapplicable"}


@pytest.mark.costly
def test_a_server_is_killed_and_started_by_commands(files: Path, databases: Databases) -> None:
    server = databases.server
    # The command of the start leaves it to this process, whose child the server is.
    listener = files / "start"
    os.mkfifo(listener)
    start = f"sh -c {shlex.quote(f'echo start > {listener}; read done < {listener}')}"
    kill = f"kill -{signal.SIGQUIT.value} {server.pid}"
    command = [sys.executable, "-m", "txpool", "check", str(files / "orders.properties"), "--conformance", "--json"]
    with subprocess.Popen(
        [*command, "--kill-command", kill, "--start-command", start], stdout=subprocess.PIPE, text=True
    ) as process:
        assert listener.read_text() == "start\n"
        while server.running:  # the command has only sent the signal
            time.sleep(0.01)
        server.start()
        listener.write_text("done\n")
        assert process.stdout is not None
        (found,) = json.loads(process.stdout.read())["datasources"]
    assert process.returncode == 0, found
    assert {each["verdict"] for each in found["cases"] if each["case"] == "killed-server"} == {"passed"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--kill-command", "true"], "give both"),
        (["--kill-command", "true", "--start-command", "true"], "name the file of one datasource"),
    ],
)
def test_commands_that_make_no_sense_are_refused(files: Path, options: list[str], says: str) -> None:
    done = check(files / "recovery.properties", *options)
    assert done.returncode == TxpoolExitCode.CONFIGURATION
    assert says in done.stderr


def test_without_the_kit_no_server_is_killed(files: Path) -> None:
    command = [sys.executable, "-m", "txpool", "check", str(files / "orders.properties"), "--kill-command", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == TxpoolExitCode.USAGE


def test_a_database_out_of_reach(files: Path) -> None:
    file = files / "orders.properties"
    file.write_text(file.read_text().replace("/one", "/nowhere"))
    done = check(file)
    assert done.returncode == TxpoolExitCode.UNREACHABLE
    assert "could not be connected to" in done.stdout
    assert os.environ[PASSWORD] not in done.stdout + done.stderr
    assert check(files / "nothing.properties").returncode == TxpoolExitCode.CONFIGURATION
