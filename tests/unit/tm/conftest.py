"""What several tests of transactions want of their process."""

from __future__ import annotations

import pytest

from txpool import tracing
from txpool.metrics import instruments


@pytest.fixture
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody watches the phases, the coordinator commits what would end alone."""
    monkeypatch.setattr(tracing, "tracer", None)
    monkeypatch.setattr(instruments, "armed", False)
