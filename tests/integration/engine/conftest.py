"""A transaction manager for the tests of engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txpool.tm.manager import configure


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()
