"""What loads data by SQLAlchemy of its own, if it is installed: it takes part as its page says."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import read
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.conftest import Databases

#: Each in a process of its own, since they change logging and warnings for the whole process.
BEGIN = """
import json, os, sys
import txpool
txpool.configure(node_name="loader", log_url="memory:")
"""
DLT = """
import dlt
engine = txpool.create_engine("conf/orders.properties")

def load(number):
    to = dlt.destinations.sqlalchemy(engine)
    pipeline = dlt.pipeline("fares", destination=to, dataset_name="public", pipelines_dir="pipelines")
    pipeline.run([{"id": number}], table_name="fare")
"""
AIRFLOW = """
hook = DatasourceHook(datasource_conn_id="orders")
hook.run("create table fare (id int)")

def load(number):
    if number == 1:
        hook.run("insert into fare values (%s)", parameters=(1,))
    else:
        hook.insert_rows("fare", [(number,)])
    assert (number,) in hook.get_records("select id from fare")
"""
WORK = """
load(1)
try:
    with txpool.transaction():
        load(2)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
with txpool.transaction() as tx:
    load(3)
    with txpool.connect("conf/other.properties") as other:
        other.execute("create table done (id int)")
    print("took part:", json.dumps(sorted(each.name for each in tx.datasources)))
"""


def run(databases: Databases, folder: Path, program: str, environment: dict[str, str]) -> str:
    (folder / "conf").mkdir()
    for name, database in (("orders", "one"), ("other", "two")):
        (folder / f"conf/{name}.properties").write_text(
            f"name = {name}\ndriver = psycopg\nurl = {databases.url(database)}\npassword = ${{env:ORDERS_PASSWORD}}\n"
        )
    own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + program + WORK],
        cwd=folder,
        env=own | {"ORDERS_PASSWORD": databases.server.password} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-8000:]
    return ended.stdout


def check(databases: Databases, printed: str) -> None:
    assert json.loads(printed.split("took part:")[1].splitlines()[0]) == ["orders", "other"]
    assert databases.rows("one", "select id from fare order by id") == [(1,), (3,)]
    assert databases.rows("two", "select count(*) from done") == [(0,)]


@pytest.mark.slow
def test_dlt(databases: Databases, tmp_path: Path) -> None:
    pytest.importorskip("dlt", reason="dlt: pip install 'dlt[sqlalchemy]'")
    one_thread: Any = {"LOAD__POOL_TYPE": "none", "LOAD__WORKERS": "1", "RUNTIME__DLTHUB_TELEMETRY": "false"}
    check(databases, run(databases, tmp_path, DLT, one_thread))


@pytest.mark.slow
def test_a_hook_of_airflows(databases: Databases, tmp_path: Path) -> None:
    try:
        importlib.import_module("airflow.providers.common.sql")
    except ImportError:
        pytest.skip("Airflow: pip install apache-airflow-providers-common-sql")
    page = read(ROOT / "docs/how-to/airflow.md")
    (hook,) = (block.text for block in page.blocks if "DbApiHook" in block.text)
    connection = {"AIRFLOW_CONN_ORDERS": "txpool:///conf/orders.properties", "AIRFLOW_HOME": str(tmp_path / "airflow")}
    check(databases, run(databases, tmp_path, hook + AIRFLOW, connection))
