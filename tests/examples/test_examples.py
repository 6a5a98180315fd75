"""Each example's one command, as it stands in its README: what it prints, and what the databases hold afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from pyiceberg.table import StaticTable

from tests.docs.blocks import read
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.conftest import Databases, Require

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
SERVERS = ["fastapi", "gunicorn"]
SPARK = ["spark_batch", "spark_plain_tasks", "spark_stream"]
EVERY = sorted([*SERVERS, *SPARK, "airflow", "jms", "kafka", "lake", "notebook", "sqlalchemy"])
#: The databases are the tests' own, which can be read afterwards; or the program's, as on a fresh clone.
OWN = [pytest.param(True, id="own databases"), pytest.param(False, id="a server for a try")]
#: What an example asks the environment for, and which of the tests' two databases it gets.
_URLS = {"ORDERS_URL": "one", "BILLING_URL": "two", "TOTALS_URL": "two"}
_NAMES = (*_URLS, "PGPASSWORD", "ORDERS_PASSWORD", "TOTALS_PASSWORD", "FOLDER")
_SECONDS = 240.0


def blocks(example: str, kind: str) -> list[str]:
    return [block.text for block in read(ROOT / "examples" / example / "README.md").blocks if block.kind == kind]


def environment(databases: Databases | None = None) -> dict[str, str]:
    """A user's environment after the install: with the urls of the tests' databases, or without any."""
    mine = {name: value for name, value in os.environ.items() if name not in _NAMES and name != "TXPOOL_CONF"}
    mine["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{mine['PATH']}"
    mine |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # Ports of their own: uvicorn and gunicorn read these.
    mine |= {"UVICORN_PORT": "0", "GUNICORN_CMD_ARGS": "--bind=127.0.0.1:0 --no-control-socket"}
    if databases is not None:
        mine |= {name: databases.url(database) for name, database in _URLS.items()}
        mine |= dict.fromkeys(("PGPASSWORD", "ORDERS_PASSWORD", "TOTALS_PASSWORD"), databases.server.password)
    return mine


def run(command: str, env: dict[str, str]) -> str:
    ended = subprocess.run(
        command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr[-8000:]}"
    return ended.stdout


@contextmanager
def serving(example: str, env: dict[str, str], log: Path) -> Iterator[str]:
    """Run the command of a server; where it listens."""
    (command, _) = blocks(example, "sh")
    with log.open("w") as out:
        process = subprocess.Popen(shlex.split(command), cwd=ROOT, env=env, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _SECONDS
        while not (found := re.search(r"(?:Listening at:|running on) (http://[\d.]+:\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_SECONDS)


def says(example: str, printed: str) -> bool:
    (expected,) = blocks(example, "text")
    return re.fullmatch(re.escape(expected).replace("…", ".*"), printed) is not None


def test_every_folder_has_a_test() -> None:
    assert EVERY == EXAMPLES
    assert sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir()) == EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES)
def test_its_readme_is_short_and_its_links_are_there(example: str) -> None:
    readme = ROOT / "examples" / example / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 25
    assert [link for link in re.findall(r"\]\(([^)#]+)", text) if not (readme.parent / link).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_page_names_it(example: str) -> None:
    assert any(f"`examples/{example}/`" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.costly
@pytest.mark.parametrize("own", OWN)
def test_sqlalchemy(own: bool, databases: Databases) -> None:
    (command,) = blocks("sqlalchemy", "sh")
    printed = run(command, environment(databases if own else None))
    assert says("sqlalchemy", printed), printed
    if own:
        assert databases.rows("one", "select * from orders order by id") == [(1, 30), (3, 12)]
        assert databases.rows("two", "select * from invoices order by order_id") == [(1, 30), (3, 12)]
        assert databases.prepared() == []


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("name", ["jms", "kafka"])
def test_broker(require: Require, name: str) -> None:
    require(shutil.which("mvn") and shutil.which("java"), f"{name}: apt-get install maven default-jdk-headless")
    if os.environ.get("TXPOOL_CRASH_FULL") != "1":
        pytest.skip("TXPOOL_CRASH_FULL=1 starts one more broker")
    (command,) = blocks(name, "sh")
    printed = run(command, environment())
    assert says(name, printed), printed


@pytest.mark.costly
@pytest.mark.crash
def test_airflow(databases: Databases) -> None:
    (command,) = blocks("airflow", "sh")
    printed = run(command, environment(databases))
    assert says("airflow", printed), printed
    assert databases.rows("one", "select * from orders order by id") == [(1, 30), (2, 12), (3, 58)]
    assert databases.rows("two", "select * from days") == [("scheduled__2026-11-22", 100)]
    assert databases.prepared() == []


@pytest.mark.costly
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("example", SERVERS)
def test_a_server(example: str, own: bool, databases: Databases, tmp_path: Path, require: Require) -> None:
    require(shutil.which("curl"), "curl: apt-get install curl")
    env = environment(databases if own else None)
    (_, requests) = blocks(example, "sh")
    with serving(example, env, tmp_path / "log") as url:
        printed = run(requests.replace("http://127.0.0.1:8000", url), env)
    assert says(example, printed), printed
    if own:
        assert databases.rows("one", "select amount from transfer") == [(-30,)]
        assert databases.rows("two", "select amount from transfer") == [(30,)]
        assert databases.prepared() == []


@pytest.mark.costly
@pytest.mark.parametrize("own", OWN)
def test_the_notebook(own: bool, databases: Databases) -> None:
    """By the command where a kernel is installed; else its cells in order, which are ordinary Python."""
    (command,) = blocks("notebook", "sh")
    notebook = ROOT / "examples" / "notebook" / "transfer.ipynb"
    env = environment(databases if own else None)
    if all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")):
        run(command, env)
    else:
        printed = run(f"{shlex.quote(sys.executable)} tests/examples/cells.py {notebook}", env)
        assert says("notebook", printed), printed
    if own:
        assert databases.rows("one", "select amount from account order by 1") == [(-30,), (-12,)]
        assert databases.rows("two", "select amount from account order by 1") == [(12,), (30,)]
        assert databases.prepared() == []


def test_the_notebook_is_kept_with_what_its_cells_print() -> None:
    notebook = json.loads((ROOT / "examples" / "notebook" / "transfer.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert "".join(text for output in outputs for text in output["text"]) == blocks("notebook", "text")[0]


@pytest.mark.costly
@pytest.mark.spark
def test_the_spark_batch(databases: Databases, spark_environ: dict[str, str], tmp_path: Path) -> None:
    (command,) = blocks("spark_batch", "sh")
    printed = run(command, environment(databases) | spark_environ | {"FOLDER": str(tmp_path)})
    assert says("spark_batch", printed), printed
    orders = "select count(*), count(distinct id), sum(amount) from orders"
    assert databases.rows("one", orders) == [(1000, 1000, 500500)]
    assert databases.rows("two", "select count(*), sum(amount) from totals") == [(7, 500500)]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        assert ledger.execute("select * from loads").fetchall() == [("2026-11-22", 1000)]
    assert databases.prepared() == []


@pytest.mark.costly
@pytest.mark.spark
def test_the_spark_stream(databases: Databases, spark_environ: dict[str, str]) -> None:
    (command,) = blocks("spark_stream", "sh")
    printed = run(command, environment(databases) | spark_environ)
    assert says("spark_stream", printed), printed
    assert databases.rows("one", "select count(*), count(distinct id), sum(amount) from orders") == [(200, 200, 20100)]
    assert databases.rows("two", "select count(*), sum(amount) from totals") == [(2, 20100)]
    assert databases.prepared() == []


@pytest.mark.costly
@pytest.mark.spark
def test_the_plain_tasks(databases: Databases, spark_environ: dict[str, str]) -> None:
    (command,) = blocks("spark_plain_tasks", "sh")
    printed = run(command, environment(databases) | spark_environ)
    assert says("spark_plain_tasks", printed), printed
    for name, table in (("one", "orders"), ("two", "invoices")):
        assert databases.rows(name, f"select count(*), sum(amount) from {table}") == [(1000, 500500)]
    assert databases.prepared() == []


@pytest.mark.costly
@pytest.mark.spark
def test_the_lake(databases: Databases, spark_environ: dict[str, str], tmp_path: Path) -> None:
    (command,) = blocks("lake", "sh")
    printed = run(command, environment(databases) | spark_environ | {"FOLDER": str(tmp_path)})
    assert says("lake", printed), printed
    ((metadata,),) = databases.rows("one", "select metadata_location from txpool_spark.iceberg_tables")
    in_lake = StaticTable.from_metadata(metadata).scan().to_arrow()
    in_files = pyarrow.dataset.dataset(tmp_path / "exports/orders/2026-11-27", format="parquet").to_table()
    for table in (in_lake, in_files):
        assert sorted(table["id"].to_pylist()) == [*range(1, 1001)]
        assert sum(table["amount"].to_pylist()) == 500500
    assert databases.rows("two", "select count(*), sum(amount) from totals") == [(7, 500500)]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        assert ledger.execute("select * from loads").fetchall() == [("2026-11-27", 1000)]
    assert databases.prepared() == []


_BRINGING = [
    "airflow/scheduler.py",
    "lake/load.py",
    "spark_batch/batch.py",
    "spark_plain_tasks/job.py",
    "spark_stream/stream.py",
]


@pytest.mark.parametrize("program", _BRINGING)
def test_a_slow_one_brings_its_server_as_a_quick_one_does(program: str) -> None:
    """These are run against the tests' own server alone, since they take long. The quick one is run with both."""

    def bringing(name: str) -> list[str]:
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        text = text.replace("TOTALS", "BILLING").replace("totals", "billing")
        return text[text.index('if "ORDERS_URL" not in') :].splitlines()[:5]

    assert bringing(program) == bringing("sqlalchemy/shop.py")
