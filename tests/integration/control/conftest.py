"""A coordinator's file with a `control.folder`, and processes that have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.control.processes import PROLOGUE, WORKER, Start
from tests.support.children import Child, children, said


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The coordinator's file."""
    file = tmp_path / "txpool.properties"
    file.write_text("control.folder = control\n")
    return file


@pytest.fixture
def start(conf: Path, tmp_path: Path) -> Iterator[Start]:
    """`start("orders")`: a process with a pool of that name, and its pid."""
    with children(PROLOGUE, "") as spawn:

        def start(name: str = "orders") -> tuple[Child, int]:
            child = spawn(WORKER, str(conf), str(tmp_path / "one.db"), name)
            word, pid = said(child)
            assert word == "ready"
            return child, int(pid)

        yield start
