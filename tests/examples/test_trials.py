"""What a new user does with one page: its blocks in an empty folder, its Python as a program of its own.

Each page says by `run by` that its blocks run here: docs/how-to/wsgi.md (Flask), docs/how-to/fastapi.md,
docs/how-to/django.md, docs/how-to/sqlalchemy.md (with pandas), docs/how-to/spark-plain-tasks.md. The trial of a job and
its data is in tests/docs/test_jobs.py. What the databases hold then is read by their own clients.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from tests.docs.blocks import Block, read
from tests.docs.running import Machine
from tests.support.repository import ROOT

_SECONDS = 240.0
#: What a program prints before each of its blocks.
_NEXT = "\x1e"


class Trial(Machine):
    """A machine whose Python blocks, up to the next command, are one program in a process of its own."""

    def __init__(self, machine: Machine) -> None:
        vars(self).update(vars(machine))
        self._program: list[tuple[Block, Block | None]] = []

    def one(self, block: Block, *, cells: bool = False) -> None:
        if block.kind == "text" and self._program:
            self._program[-1] = self._program[-1][0], block
            return
        if block.kind in ("sh", "sql"):
            self.end_program()
        super().one(block, cells=cells)

    def python(self, block: Block, *, cells: bool) -> None:
        self._program.append((block, None))

    def end_program(self) -> None:
        """Run it, and compare what each block has printed with what the page says."""
        program, self._program = self._program, []
        if not program:
            return
        file = self.folder / "program.py"
        file.write_text("".join(f"print({_NEXT!r}, flush=True)\n{self.here(block.text)}" for block, _ in program))
        done = subprocess.run(
            ["python", file.name],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{program[0][0]} and what follows\n{done.stdout}{done.stderr[-8000:]}"
        printed = done.stdout.split(f"{_NEXT}\n")[1:]
        assert len(printed) == len(program)
        for (_, text), self.printed in zip(program, printed, strict=True):
            if text is not None:
                super().one(text)

    def rows(self, database: str, query: str) -> list[Any]:
        with psycopg.connect(self.server.dsn(database)) as connection:
            return connection.execute(cast("Any", query)).fetchall()

    def loads(self) -> list[Any]:
        """The rows of the SQLite file."""
        with closing(sqlite3.connect(self.folder / "conf/ledger.db")) as ledger:
            return ledger.execute("select * from loads").fetchall()


@pytest.fixture
def trial(machine: Machine) -> Trial:
    return Trial(machine)


def run(trial: Trial, page: str) -> None:
    found = read(ROOT / page)
    assert found.run_by == "tests/examples/test_trials.py"
    trial.run(found)
    trial.end_program()
    assert trial.rows("postgres", "select * from pg_prepared_xacts") == []


def numbers(trial: Trial, database: str, query: str) -> list[int]:
    return [int(number) for (number,) in trial.rows(database, query)]


@pytest.mark.costly
def test_flask(trial: Trial) -> None:
    run(trial, "docs/how-to/wsgi.md")
    balances = [numbers(trial, name, "select balance from account") for name in ("orders", "billing")]
    assert balances == [[900], [100]]
    assert numbers(trial, "billing", "select id from items") == [1]
    assert trial.loads() == [("orders", None)]


@pytest.mark.costly
def test_fastapi(trial: Trial) -> None:
    run(trial, "docs/how-to/fastapi.md")
    balances = [numbers(trial, name, "select balance from account") for name in ("orders", "billing")]
    assert balances == [[800], [200]]
    assert numbers(trial, "orders", "select id from orders") == []
    assert numbers(trial, "billing", "select id from items") == [7]


@pytest.mark.costly
def test_a_django_project(trial: Trial) -> None:
    run(trial, "docs/how-to/django.md")
    purchases = "select number from shop_purchase order by number"
    assert numbers(trial, "orders", purchases) == [1, 20]
    assert numbers(trial, "billing", purchases) == [-20, 1, 20]
    with closing(sqlite3.connect(trial.folder / "conf/ledger.db")) as ledger:
        assert ledger.execute(purchases).fetchall() == [(1,)]


@pytest.mark.costly
def test_sqlalchemys_orm_and_pandas(trial: Trial) -> None:
    run(trial, "docs/how-to/sqlalchemy.md")
    assert numbers(trial, "orders", "select id from orders order by id") == [1, 2, 3, 5]
    assert numbers(trial, "billing", "select id from items") == []
    assert trial.loads() == [("orders", 3)]


@pytest.mark.costly
@pytest.mark.spark
def test_plain_tasks_of_spark(trial: Trial, spark_environ: dict[str, str]) -> None:
    os.environ.update(spark_environ)
    run(trial, "docs/how-to/spark-plain-tasks.md")
    for name, table in (("orders", "orders"), ("billing", "items")):
        assert trial.rows(name, f"select count(*), sum(amount) from {table}") == [(100, 5050)]


@pytest.mark.costly
def test_the_folder_is_empty_before(trial: Trial) -> None:
    made = {path.name for path in Path.cwd().iterdir()}
    assert made == {"bin", "etc", "secret", "var"}  # the machine's own
