"""The arguments of every client of kafka-python's."""

from __future__ import annotations

from pathlib import Path

import pytest

from txpool.config.settings import DataSourceSettings
from txpool.resources.kafka.manager import MANAGER


@pytest.mark.parametrize(("line", "expected"), [("", 1000), ("driver.reconnect_backoff_max_ms = 5000\n", 5000)])
def test_a_broker_that_is_back_is_reached_before_a_prepare_gives_up(line: str, expected: int, tmp_path: Path) -> None:
    """By its own default kafka-python may wait for half a minute, which is longer than a PREPARE tries it."""
    file = tmp_path / "orders.properties"
    file.write_text(f"driver = kafka\nurl = kafka://broker\ntopic = orders\n{line}")
    assert MANAGER.options(DataSourceSettings.load(file))["reconnect_backoff_max_ms"] == expected
