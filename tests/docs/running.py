"""Runs the blocks of a page in a folder of its own, against a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import configparser
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import typer
from typer.testing import CliRunner

import recovery.cli
import txpool.cli
from tests.docs.blocks import Block, Page, read
from tests.integration.check.place import execute
from tests.support.mysql import MySQLServer
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres

#: The password of every role that a page makes.
PASSWORD = "change me"
#: What a file's first line says of its place, in the comments of its language.
_PLACE = re.compile(r"(?:#|--) ([\w./-]+\.\w+|/etc/[\w./-]+)\n")
_COMMANDS: dict[str, typer.Typer] = {"txpool": txpool.cli.app, "txpool-recovery": recovery.cli.app}
_SYNTAX = set("|&;<>$`\\(){}*?\"'")
_SECONDS = 120.0


class Machine:
    """The machine of a page: its folders are in a folder, its server has another port, its user has other rights."""

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        self.folder = folder
        self.server = server
        #: Of a page that has one.
        self.mariadb: MySQLServer | None = None
        #: The page's Python is a program's own module, whose functions Spark sends to its tasks by value.
        self.main = ModuleType("__main__")
        self.namespace: dict[str, Any] = vars(self.main)
        self.printed = ""
        #: Spark's workers may be older than a page: they have none of its variables, so secrets are in a file.
        self.by_file = False
        (folder / "secret").write_text(PASSWORD)
        (folder / "secret").chmod(0o600)
        for path in ("etc/txpool", "var/lib/txpool"):
            (folder / path).mkdir(parents=True)
        self._programs()

    def _programs(self) -> None:
        """The commands as a shell finds them, where nothing is installed either."""
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        for name, module in (("txpool", "txpool"), ("txpool-recovery", "recovery"), ("python", "")):
            program = self.programs / name
            found = f'PYTHONPATH="{ROOT}:$PYTHONPATH" exec {sys.executable}'
            program.write_text(f'#!/bin/sh\n{found} {module and f"-m {module}"} "$@"\n')
            program.chmod(0o755)

    def here(self, text: str) -> str:
        """The paths and addresses of a page, as they are here."""
        text = re.sub(r"/(etc/txpool|var/lib/txpool)", rf"{self.folder}/\1", text)
        if self.mariadb is not None:
            text = re.sub(r"(mysql://\w+)@localhost/", rf"\1@127.0.0.1:{self.mariadb.port}/", text)
        text = text.replace("/opt/derby/lib", str(Path(sysconfig.get_path("purelib")) / "pyspark/jars"))  # Spark has it
        text = text.replace("host=localhost", f"host=127.0.0.1 port={self.server.port}")
        return re.sub("@localhost(:5432)?/", f"@127.0.0.1:{self.server.port}/", text)

    def file(self, text: str) -> str:
        """The text of a file."""
        return re.sub(r"\$\{env:\w+\}", f"${{file:{self.folder}/secret}}", text) if self.by_file else text

    def run(self, page: Page) -> None:
        """Run every block of the pages that this one stands on, and its own."""
        self.by_file |= page.needs_spark
        for other in page.stands_on:
            self.run(read(other))
        for block in page.blocks:
            if not block.not_run:
                self.one(block, cells=page.cells)

    def one(self, block: Block, *, cells: bool = False) -> None:
        """Run one block. Errors: those of the block; AssertionError where it prints something else than it says."""
        for name in re.findall(r"\$\{env:(\w+)\}", block.text):
            os.environ.setdefault(name, PASSWORD)
        if place := _PLACE.match(block.text):
            if not place[1].endswith(".service"):
                path = self.folder / self.here(place[1])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.file(self.here(block.text)))
                path.chmod(0o600)
            if block.kind in ("properties", "toml", "python", "yaml", "html"):
                return
        if block.kind == "python":
            self.python(block, cells=cells)
        else:
            getattr(self, f"_{block.kind}")(block)

    def python(self, block: Block, *, cells: bool) -> None:
        code = compile("\n" * (block.line - 1) + self.here(block.text), str(block.page), "exec", dont_inherit=True)

        async def cell() -> None:
            exec(code, self.namespace)

        with redirect_stdout(io.StringIO()) as out:
            if cells:
                asyncio.run(cell())
            else:
                exec(code, self.namespace)
        self.printed = out.getvalue()

    def _text(self, block: Block) -> None:
        lines = [re.escape(line.rstrip()) for line in block.text.rstrip().splitlines()]
        expected = "\n".join(r"(?:.*\n)*?.*" if line == "…" else line.replace("…", ".*?") for line in lines)
        printed = "\n".join(line.rstrip() for line in self.printed.rstrip().splitlines())
        assert re.fullmatch(expected, printed), f"{block} says\n{block.text}\nand what was printed is\n{printed}"

    def _sql(self, block: Block) -> None:
        first, _, statements = self.here(block.text).partition("\n")
        if first == "-- in MariaDB, as an administrator":
            assert self.mariadb is not None
            self.mariadb.execute(*filter(None, map(str.strip, statements.split(";\n"))))
            return
        if place := re.fullmatch(r"-- as a superuser in (\w+)", first):
            dsn = self.server.dsn(place[1])
        elif place := re.fullmatch(r"-- in (\w+)", first):
            dsn = psycopg.conninfo.make_conninfo(self.server.dsn(place[1]), user="app", password=PASSWORD)
        else:
            place = re.fullmatch(r"-- in SQLite, (.+)", first)
            assert place, f"{block}: where is {first}?"
            path = self.folder / place[1]
            path.parent.mkdir(exist_ok=True)
            execute(path, *statements.split(";\n"))
            return
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in statements.split(";\n"):
                if statement.strip():
                    connection.execute(statement.encode())

    def _properties(self, block: Block) -> None:
        raise AssertionError(f"{block}: its first line has no path, such as # conf/orders.properties")

    def _toml(self, block: Block) -> None:
        tomllib.loads(block.text)

    def _sh(self, block: Block) -> None:
        text = self.here(block.text)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        if all(line.split()[0] in _COMMANDS and _SYNTAX.isdisjoint(line.partition("#")[0]) for line in lines):
            self.printed = "".join(self._command(block, line) for line in lines)
            return
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        self.printed = done.stdout
        assert done.returncode == 0, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}"

    def _command(self, block: Block, line: str) -> str:
        """One of our commands, in this process. A comment such as `# ends with 1` tells its exit code."""
        command, *arguments = shlex.split(line, comments=True)
        # Of a transaction or a pool that does not exist there is nothing to do: command and options are there.
        arguments += ["--help"] if re.search(r"\b(GTRID|NAME)\b", line) else []
        code, said = self.command(command, *arguments)
        ends = re.search(r"# ends with (\d+)", line)
        # The disk that this runs on may be worth a look.
        right = (int(ends[1]),) if ends else (0, 20) if "check" in arguments else (0,)
        assert code in right, f"{block}: {line}\nexit code {code}\n{said}"
        return said

    def command(self, command: str, *arguments: str) -> tuple[int, str]:
        """How one of our commands ended, and what it said."""
        result = CliRunner().invoke(_COMMANDS[command], arguments, env={"COLUMNS": "120"})
        return result.exit_code, result.output

    def _ini(self, block: Block) -> None:
        """Start and end the service as systemd would."""
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block.text)
        service = unit["Service"]
        assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
        command, *arguments = shlex.split(self.here(service["ExecStart"]))
        assert Path(command).name == "txpool-recovery"
        process = subprocess.Popen(
            [sys.executable, "-m", "recovery", *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
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
                        assert said, f"{block}: it has ended"
                    process.send_signal(sent)
                assert "ended; its last pass left nothing pending" in lines.read()
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()
