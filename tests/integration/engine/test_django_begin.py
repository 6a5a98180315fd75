"""Django over a connection of SQLite's: its atomic() sends BEGIN by itself, which is absorbed inside a transaction."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PROGRAM = """
import sys
import django
from django.conf import settings
from django.db.backends.sqlite3 import base
import txpool

source = txpool.DataSource(
    "lite", driver="sqlite3", mode=sys.argv[1], url=f"sqlite:///{sys.argv[2]}", managed_commit="join"
)
base.DatabaseWrapper.get_new_connection = lambda self, parameters: source.connect()
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[2]}})
django.setup()
from django.db import connection, transaction

if sys.argv[1] == "cmr":
    source.xids_table().create()


def insert(number):
    with connection.cursor() as cursor:
        cursor.execute("insert into t values (%s)", [number])


def fail(number):
    insert(number)
    raise ZeroDivisionError


connection.ensure_connection()  # which chooses how sqlite3 begins, as a transaction lets nobody do
with txpool.transaction():
    with transaction.atomic():
        insert(1)
        try:
            with transaction.atomic():
                fail(2)
        except ZeroDivisionError:
            insert(3)
    try:
        with transaction.atomic():
            fail(4)
    except ZeroDivisionError:
        pass
with transaction.atomic():
    insert(5)
connection.close()
"""


@pytest.mark.parametrize("mode", ["local", "cmr"])
def test_its_blocks_are_parts_of_the_transaction(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "lite.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("create table t (id integer primary key)")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("select id from t order by id").fetchall() == [(1,), (3,), (5,)]
