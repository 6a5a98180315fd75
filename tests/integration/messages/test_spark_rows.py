"""Rows of Spark's as messages, as a task sends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import txpool
from tests.integration.messages.test_consume import session
from txpool.messages import MessageSession
from txpool.spark.messages import _Send, require_columns

__all__ = ["session"]


@pytest.mark.parametrize("binary", [bytes, bytearray])
def test_binary_columns_come_as_bytes_or_as_a_bytearray(session: MessageSession, binary: type) -> None:
    """As spark.sql.execution.pyspark.binaryAsBytes says, which is true from Spark 4.1 on."""
    pyspark = pytest.importorskip("pyspark.sql")
    _Send(session.source)(iter([pyspark.Row(key=binary(b"k"), value=binary(b"\xff"), headers={"h": "x"})]))
    with txpool.transaction():
        (found,) = session.receive(10)
    assert (found.key, found.body, dict(found.headers)) == ("k", b"\xff", {"h": "x"})


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ([("value", "string"), ("value", "string")], "value (string) twice"),
        ([("value", "string"), ("key", "int")], "key (int)"),
        ([("key", "string")], "no column value"),
    ],
)
def test_columns_that_are_none_of_a_messages(columns: list[tuple[str, str]], named: str) -> None:
    frame: Any = SimpleNamespace(dtypes=columns, columns=[name for name, _ in columns])
    with pytest.raises(txpool.ProgrammingError) as error:
        require_columns(frame)
    assert named in str(error.value)
