"""A coordinator with a log, and two outboxes: resources of a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.outbox import Outbox
from txpool import failpoints


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The coordinator's file; its log is beside it."""
    path = tmp_path / "txpool.properties"
    path.write_text(f"node.name = own\nlog.url = sqlite:///{tmp_path}/txlog\nlog.create = true\n")
    txpool.configure(path)
    yield path
    failpoints.disarm()
    txpool.configure()


@pytest.fixture
def outbox(tmp_path: Path) -> Any:
    """The outbox of docs/how-to/your-own-resource.md."""
    (tmp_path / "outbox").mkdir()
    return Outbox("outbox", tmp_path / "outbox")


@pytest.fixture
def second(tmp_path: Path) -> Any:
    """Another one, in another folder."""
    (tmp_path / "others").mkdir()
    return Outbox("others", tmp_path / "others")
