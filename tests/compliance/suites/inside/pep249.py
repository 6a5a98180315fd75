"""PEP 249's tests, over both drivers. `driver` is the driver's module; where txpool stands in for it, txpool's own."""

from __future__ import annotations

import json
import os
import sqlite3
from types import SimpleNamespace
from typing import Any

import dbapi20
import psycopg

import txpool

_SUITE = json.loads(os.environ["TXPOOL_SUITE"])


def _driver(module: Any) -> Any:
    if not _SUITE["handle"]:
        return module
    return SimpleNamespace(**vars(txpool) | {"connect": module.connect, "paramstyle": module.paramstyle})


class _Common:
    _connect: Any

    def test_setoutputsize(self) -> None:
        connection = self._connect()
        cursor = connection.cursor()
        cursor.setoutputsize(1000)
        cursor.setoutputsize(2000, 0)
        connection.close()


class TestPsycopg(_Common, dbapi20.DatabaseAPI20Test):
    driver = _driver(psycopg)
    connect_args = (_SUITE["psycopg"],)

    def test_nextset(self) -> None:
        connection = self._connect()
        cursor = connection.cursor()
        cursor.execute("select 1; select 2")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(2,)]
        assert cursor.nextset() is None
        connection.close()


class TestSQLite3(_Common, dbapi20.DatabaseAPI20Test):
    driver = _driver(sqlite3)
    connect_args = (_SUITE["sqlite3"],)

    def test_nextset(self) -> None:
        connection = self._connect()
        assert not hasattr(connection.cursor(), "nextset")
        connection.close()
