"""What tests of statements outside any transaction share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError

refused = pytest.raises(ProgrammingError, match=r"one: a statement outside any transaction.* Nothing was done")


@contextmanager
def plain(datasource: DataSource) -> Iterator[Any]:
    connection = datasource.connect()
    try:
        yield connection
    finally:
        connection.close()
