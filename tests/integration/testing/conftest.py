"""A user's project in a folder, whose tests use txpool.testing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

_DATASOURCE = "driver = psycopg\nmode = xa\nurl = postgresql://app@localhost/{name}\n"
_LOG = "node.name = shop-1\nlog.url = sqlite:///txlog\n"
FILES = {
    "conf/orders.properties": _DATASOURCE.format(name="orders"),
    "conf/billing.properties": _DATASOURCE.format(name="billing"),
    "conf/txpool.properties": _LOG,
    "conf/recovery.properties": f"{_LOG}datasources = orders.properties, billing.properties\n",
    "shop.py": """
import txpool

def connect(name):
    return txpool.connect(f"conf/{name}.properties")

@txpool.transactional()
def pay(amount):
    connect("orders").execute("update account set balance = balance - %s", (amount,))
    connect("billing").execute("update account set balance = balance + %s", (amount,))

@txpool.transactional(propagation="requires_new")
def spoil():
    connect("orders").execute("update account set balance = 0")

def balances():
    found = []
    for name in ("orders", "billing"):
        with connect(name) as connection:
            found.append(int(connection.execute("select balance from account").fetchone()[0]))
    return found
""",
    "pay_script.py": "import sys, shop\nprint('pays', sys.argv[1], flush=True)\nshop.pay(int(sys.argv[1]))\n",
    "conftest.py": """
import psycopg, pytest
pytest_plugins = ["txpool.testing"]

@pytest.fixture(scope="session")
def txpool_databases():
    return "orders", "billing"

@pytest.fixture(scope="session", autouse=True)
def tables(txpool_postgres):
    for name in ("orders", "billing"):
        with psycopg.connect(txpool_postgres.dsn(name)) as connection:
            connection.execute("create table account (balance numeric not null)")
            connection.execute("insert into account values (1000)")
""",
}


class Project:
    """The folder; `run(text)` runs its tests in a process of pytest's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conf").mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def run(self, test: str, *options: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "test_shop.py").write_text(test)
        environment = {name: value for name, value in os.environ.items() if name != "TXPOOL_CONF"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(ROOT)},
            timeout=300,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
