"""An engine over one datasource, and a table of it as a bare driver connection sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from txpool.datasource import DataSource
from txpool.engine import create_engine


class EngineTable:
    """An engine over one datasource, and a table of it as a bare driver connection sees it."""

    def __init__(self, datasource: DataSource, bare: Callable[[], Any], *, name: str) -> None:
        self.datasource = datasource
        self.engine = create_engine(datasource)
        self._bare = bare
        self._name = name

    def execute(self, statement: str) -> None:
        with closing(self._bare()) as raw:
            raw.execute(statement)

    def read(self) -> list[tuple[int, str]] | None:
        """The rows, or None where there is no table."""
        with closing(self._bare()) as raw:
            try:
                found: list[tuple[int, str]] = raw.execute(f"select id, name from {self._name} order by id").fetchall()
            except (psycopg.errors.UndefinedTable, sqlite3.OperationalError):
                return None
        return found
