"""What is in the table."""

from __future__ import annotations

from typing import Any

from txpool.datasource import DataSource


def rows(datasource: DataSource) -> list[Any]:
    with datasource.connect() as connection:
        found: list[Any] = connection.cursor().execute("select id, v from t order by id").fetchall()
    connection.close()
    return found
