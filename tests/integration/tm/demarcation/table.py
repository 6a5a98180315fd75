"""One datasource, and its table as a bare driver connection sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from txpool.datasource import DataSource


class OneDatasource:
    """One datasource, and its table as a bare driver connection sees it."""

    def __init__(self, options: dict[str, Any], bare: Callable[[], Any]) -> None:
        self.options = options
        self.bare = bare
        self.opened: list[DataSource] = []
        self.datasource = self.open()

    def open(self, **options: Any) -> DataSource:
        self.opened.append(DataSource(**(self.options | options)))
        return self.opened[-1]

    def read(self) -> list[int]:
        with closing(self.bare()) as raw:
            return [number for (number,) in raw.execute("select n from t order by n").fetchall()]

    def insert(self, connection: Any, number: int) -> None:
        connection.cursor().execute(f"insert into t values ({number})")
