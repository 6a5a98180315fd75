"""What is seen of a transaction that was dropped: what was logged, and what is free again."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from tests.support.waiting import until
from txpool.tm.demarcation.block import transaction


class Reports:
    """What was logged of dropped transactions."""

    def __init__(self, caplog: pytest.LogCaptureFixture, file: str) -> None:
        self._caplog = caplog
        self._file = file

    @property
    def texts(self) -> list[str]:
        # What other tests of this process left to delete is told, too, as a coordinator closes (process/finishing.py).
        records = [record for record in self._caplog.records if record.module != "finishing"]
        return [record.getMessage() for record in records if record.name == "txpool"]

    def one(self, marker: str) -> str:
        """The only one; it names the line of the test's file that has the marker."""
        until(lambda: self.texts)
        (text,) = self.texts
        found = re.search(re.escape(self._file) + r":(\d+), in ", text)
        assert found is not None, text
        with open(self._file, encoding="utf-8") as source:
            line = source.readlines()[int(found[1]) - 1]
        assert f"# {marker}" in line, line
        return text


def rolled_back(world: OneDatasource) -> None:
    """All that was held is free: the place in the pool, and the lock on the row."""
    until(lambda: world.datasource.statistics().taken == 0)
    assert world.read() == []
    with transaction():
        world.insert(world.datasource.connect(), 1)
    assert world.read() == [1]


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
