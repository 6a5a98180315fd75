"""`txpool init` writes files that work as they stand, or nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.support.jdbc import find_jars
from txpool.cli import app
from txpool.process.exit_codes import TxpoolExitCode

if TYPE_CHECKING:
    from tests.conftest import Databases

PROGRAM = """
import txpool
txpool.configure("conf/txpool.properties")
with txpool.transaction():
    for name in ("orders", "items"):
        with txpool.connect(f"conf/{name}.properties") as connection:
            connection.execute("insert into t values (1)")
    with txpool.connect("conf/ledger.properties") as connection:
        connection.execute("insert into t values (1)")
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _init(*arguments: str, answers: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["init", *arguments], input=answers)
    return result.exit_code, result.output


def _run(*command: str) -> None:
    ended = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _with_password(databases: Databases, name: str) -> str:
    server = databases.server
    return server.url(name).replace(f"//{server.user}@", f"//{server.user}:{server.password}@")


def test_what_it_writes_works_as_it_stands(databases: Databases) -> None:
    for name in ("one", "two"):
        databases.execute(name, "create table t (a integer)")
    with closing(sqlite3.connect("ledger.db")) as ledger:
        ledger.execute("create table t (a integer)")
    urls = f"orders={_with_password(databases, 'one')}", f"items={_with_password(databases, 'two')}"
    code, output = _init("conf", *urls, "ledger=sqlite:///ledger.db")
    assert code in (TxpoolExitCode.OK, TxpoolExitCode.WARNING), output
    _run("-c", PROGRAM)
    for name in ("one", "two"):
        assert databases.rows(name, "select a from t") == [(1,)]
    with closing(sqlite3.connect("ledger.db")) as ledger:
        assert ledger.execute("select a from t").fetchall() == [(1,)]
    _run("-m", "recovery", "scan", "--conf", "conf/recovery.properties")


def test_a_password_is_in_a_file_that_only_its_owner_reads(databases: Databases) -> None:
    _, output = _init("conf", f"orders={_with_password(databases, 'one')}")
    password = databases.server.password
    assert password not in output
    holding = [path for path in Path("conf").iterdir() if path.is_file() and password in path.read_text()]
    assert holding == [Path("conf/orders.password")]
    assert holding[0].stat().st_mode & 0o777 == 0o600


def test_without_a_password_it_names_a_variable(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_2_PASSWORD", databases.server.password)
    code, output = _init("conf", f"orders-2={databases.url('one')}")
    assert code in (TxpoolExitCode.OK, TxpoolExitCode.WARNING), output
    assert "\npassword = ${env:ORDERS_2_PASSWORD}\n" in Path("conf/orders-2.properties").read_text()


def test_it_asks_where_nothing_is_passed(databases: Databases) -> None:
    url, password = databases.url("one"), databases.server.password
    answers = f"billing-7\norders\noracle://x\norders\n{url}\n{password}\nledger\nsqlite:///ledger.db\n\n"
    code, output = _init("conf", answers=answers)
    assert code in (TxpoolExitCode.OK, TxpoolExitCode.WARNING), output
    assert password not in output
    assert "node.name = billing-7\n" in Path("conf/recovery.properties").read_text()
    assert "datasources = orders.properties, ledger.properties\n" in Path("conf/recovery.properties").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["orders=oracle://host/x"], "no database that is known here: begin it with one of postgresql://"),
        (["orders=postgresql+asyncpg://a:p@rt@host/x"], "SQLAlchemy's, with a driver in it: write postgresql://, and"),
        (["orders=jdbc:oracle:thin:@//host/x"], "no Java class is known for its url, as it is for jdbc:h2:"),
        (["orders=jdbc:postgresql://host/x?password=p@rt"], "has a password in it"),
        (["orders=postgresql://a:p@rt@host/x"], "can be read in more than one way"),
        (["orders"], "NAME=URL"),
        (["recovery=sqlite:///a.db"], "is not txpool, recovery or log"),
        (["../a=sqlite:///a.db"], "NAME=URL"),
        (["a=sqlite:///a.db", "a=sqlite:///b.db"], "the same name"),
        (["a=sqlite:///a.db", "--mode", "b=cmr"], "--mode names b"),
        (["a=sqlite:///a.db", "--mode", "a=xa"], "xa"),
        (["a=sqlite:///a.db", "--node", "no spaces"], "node.name"),
        (["a=sqlite:///a.db", "--log", "sqlite://a"], "the log's url"),
        (["a=sqlite:///a\nmode = local"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(arguments: list[str], words: str) -> None:
    code, output = _init("conf", *arguments)
    assert code == TxpoolExitCode.CONFIGURATION
    assert words in output
    assert "p@rt" not in output
    assert not Path("conf").exists() or not os.listdir("conf")


@pytest.mark.costly
def test_a_database_over_jdbc(tmp_path: Path) -> None:
    jars = find_jars()
    if jars is None:
        pytest.skip("there are no drivers for Java here")
    url, folder = f"jdbc:h2:file:{tmp_path}/stock", tmp_path / "conf"
    environment = os.environ | {"CLASSPATH": os.pathsep.join(jars.h2)}
    command = [sys.executable, "-m", "txpool", "init", str(folder), f"stock={url}"]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert ended.returncode == TxpoolExitCode.WARNING, (
        ended.stdout + ended.stderr
    )  # H2's file is open in one process at a time
    assert "0 branches of txpool are prepared there" in ended.stdout
    lines = (folder / "stock.properties").read_text().splitlines()
    assert lines[:4] == ["name = stock", "driver = jdbc", "mode = xa", f"url = {url}"]
    assert "#jdbc.classpath = lib/driver.jar" in lines


def test_a_jdbc_driver_that_is_missing_is_said_and_the_file_stays(tmp_path: Path) -> None:
    if find_jars() is None:
        pytest.skip("there is no Java here")
    command = [sys.executable, "-m", "txpool", "init", "conf", "stock=jdbc:mariadb://localhost/stock"]
    environment = {key: value for key, value in os.environ.items() if key != "CLASSPATH"}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert ended.returncode == TxpoolExitCode.CONFIGURATION, ended.stdout + ended.stderr
    assert "jdbc.classpath" in ended.stdout
    assert Path(tmp_path, "conf", "stock.properties").exists()


def test_a_log_that_cannot_be_made_is_said_with_what_to_do_then(databases: Databases) -> None:
    url = databases.url("one").replace(f":{databases.server.port}/", ":1/")
    code, output = _init("conf", "a=sqlite:///a.db", "--log", url)
    assert code == TxpoolExitCode.CONFIGURATION
    assert "could not be made: " in output
    assert "The files stay: mend that, then run\n\n    txpool-recovery init --conf conf/recovery.properties" in output
    assert "Traceback" not in output


def test_what_is_wrong_with_a_database_is_repeated_at_the_end(databases: Databases) -> None:
    url = databases.url("one").replace(f":{databases.server.port}/", ":1/")
    code, output = _init("conf", f"orders={url}", "stock=mysql://app@127.0.0.1:1/stock")
    assert code == TxpoolExitCode.UNREACHABLE
    assert "wrong" in output
    assert output.rstrip().endswith("txpool check conf/recovery.properties")


def test_the_program_that_it_shows_is_of_pep_249() -> None:
    _, output = _init("conf", "a=sqlite:///a.db")
    assert "connection.cursor().execute(" in output


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    Path("conf").mkdir()
    Path("conf/a.properties").write_text("mine")
    code, output = _init("conf", "b=sqlite:///b.db", "a=sqlite:///a.db")
    assert code == TxpoolExitCode.CONFIGURATION
    assert "conf/a.properties exists" in output
    assert os.listdir("conf") == ["a.properties"]
    assert Path("conf/a.properties").read_text() == "mine"


def test_one_datasource_is_marked_unless_told_otherwise() -> None:
    _init("conf", "a=sqlite:///a.db", "b=sqlite:///b.db")
    assert "mode = cmr\n" in Path("conf/a.properties").read_text()
    assert "mode = local\n" in Path("conf/b.properties").read_text()
    _init("other", "a=sqlite:///a.db", "b=sqlite:///b.db", "--mode", "b=cmr")
    assert "mode = local\n" in Path("other/a.properties").read_text()
    assert "mode = cmr\n" in Path("other/b.properties").read_text()


def test_paths_start_from_where_the_command_runs() -> None:
    _init("deep/conf", "a=sqlite:///a.db", "--log", "sqlite:///log")
    assert "url = sqlite:///../../a.db\n" in Path("deep/conf/a.properties").read_text()
    assert Path("log/log.db").exists()
    assert Path("a.db").exists()
