"""Servers and files to be broken, a role and a database for each test, and the command's answer."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from typer.testing import CliRunner

from txpool.cli import app
from txpool.demo.server import EmbeddedPostgres

PASSWORD = "TXPOOL_TEST_CHECK_PASSWORD"  # the name of a variable
_SQL = re.compile(
    r"\b(?:ALTER|CREATE|GRANT|REVOKE|ROLLBACK|DROP|SELECT pg_reload_conf|SET default_transaction_read_only)\b[^;]*;"
)
_READY = "ready to accept read-only connections"
_KEY = b"K\0\0\0\x0c"  # a session's process id follows, and its secret, in the protocol of PostgreSQL 3.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class CheckResult:
    """What the command has said."""

    code: int
    findings: list[dict[str, str]]

    def about(self, topic: str, severity: str | None = None) -> list[dict[str, str]]:
        """The findings of a topic."""
        return [f for f in self.findings if f["topic"] == topic and severity in (None, f["severity"])]

    @property
    def bad(self) -> list[str]:
        """The topics of what is wrong or worth a look, but for the machine's own disk."""
        return [f["topic"] for f in self.findings if f["severity"] != "ok" and f["topic"] != "storage"]


class Place:
    """One test's own role and database of a server, and its folder."""

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        number = next(_numbers)
        self.folder = folder
        self.server = server
        self.user = f"app{number}_"
        self.database = f"orders{number}_"
        os.environ[PASSWORD] = server.password
        self.admin(f"CREATE ROLE {self.user} LOGIN PASSWORD '{server.password}'", database="postgres")
        self.admin(f"CREATE DATABASE {self.database} OWNER {self.user}", database="postgres")
        self.admin(f"REVOKE CONNECT ON DATABASE {self.database} FROM PUBLIC")

    def close(self) -> None:
        """Drop the database and the roles, whatever has become of them."""
        names = f"{self.database}%", f"{self.user}%"
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
            for query, name, drop in (
                ("SELECT datname FROM pg_database WHERE datname LIKE %s", names[0], "DROP DATABASE {} WITH (FORCE)"),
                ("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", names[1], "DROP ROLE {}"),
            ):
                for (found,) in connection.execute(query.encode(), [name]).fetchall():
                    connection.execute(drop.format(found).encode())

    def admin(self, *statements: str, database: str | None = None) -> None:
        """As the superuser, each statement by itself."""
        with psycopg.connect(self.server.dsn(database or self.database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    @contextmanager
    def session(self, user: str | None = None) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """As the datasource's own user, in autocommit mode."""
        options = {"user": user or self.user, "password": self.server.password, "autocommit": True}
        with closing(psycopg.connect(self.url.replace(f"{self.user}@", ""), **options)) as connection:  # type: ignore[arg-type]
            yield connection

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self.server.port}/{self.database}"

    def file(self, text: str = "", *, name: str = "orders", url: str | None = None, mode: str = "xa") -> Path:
        """A datasource's file for this database."""
        lines = [f"driver = psycopg\nmode = {mode}\nurl = {url or self.url}", text]
        lines += [] if "password" in text.replace("recovery.password", "") else [f"password = ${{env:{PASSWORD}}}"]
        return self.write(name, "\n".join(lines))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def heal(self, advice: str, *, database: str | None = None) -> None:
        """Execute the SQL of an advice to the letter, but for a password that it leaves open."""
        statements = _SQL.findall(advice)
        assert statements, advice
        whole = [statement.replace("'…'", f"'{self.server.password}'") for statement in statements]
        self.admin(*whole, database=database)


def checked(path: Path, *options: str) -> CheckResult:
    """The command itself; nothing but JSON on its output."""
    result = CliRunner().invoke(app, ["check", str(path), "--json", *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    sections = json.loads(result.stdout)["sections"]
    return CheckResult(result.exit_code, [finding for section in sections for finding in section["findings"]])


def execute(path: Path, *statements: str) -> None:
    """Into a SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def standby_of(server: EmbeddedPostgres, folder: Path, port: int) -> Iterator[None]:
    """A streaming standby, made by pg_basebackup."""
    account, binaries = server._account, server._binaries
    made = account.run(
        binaries / "pg_basebackup", "-D", folder, "-d", server.dsn("postgres"), "-R", "-X", "stream", "-c", "fast", "-N"
    )
    assert made.returncode == 0, made.stderr
    command = [str(binaries / "postgres"), "-D", str(folder), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    for setting in ("unix_socket_directories=", "max_connections=100"):
        command += ["-c", setting]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **account.arguments,
    )
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            said = ""
            while _READY not in said:
                line = lines.readline()
                assert line, said
                said += line
            yield
            process.send_signal(signal.SIGINT)
            lines.read()
    finally:
        process.kill()
        process.wait()


@contextmanager
def pooler_before(server: EmbeddedPostgres) -> Iterator[int]:
    """The port of what gives its own process ids to clients, as poolers do, and passes all else on."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def passed(source: socket.socket, target: socket.socket, renamed: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if renamed and (at := data.find(_KEY)) >= 0:
                    data, renamed = data[: at + 5] + b"\0\0\0\1" + data[at + 9 :], False
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accepted() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.create_connection(("127.0.0.1", server.port))
                ends.extend((client, upstream))
                for arguments in ((client, upstream, False), (upstream, client, True)):
                    threads.append(threading.Thread(target=passed, args=arguments))
                    threads[-1].start()

    threads = [threading.Thread(target=accepted)]
    threads[0].start()
    try:
        yield listener.getsockname()[1]
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()
