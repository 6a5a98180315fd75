"""Where settings are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory of the test's own, and no configuration around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXPOOL_CONF", raising=False)
