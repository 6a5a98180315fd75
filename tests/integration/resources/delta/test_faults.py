"""The file system says no: a table takes rows once it has room again. A small file system in memory is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import txpool
from tests.integration.resources.delta.conftest import Tables
from tests.integration.resources.delta.test_recovery import heuristics
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from tests.conftest import Require

SIZE = 2 * 1024 * 1024
ROOM = 128 * 1024
#: No compression makes it smaller than the room that is left.
LARGE = os.urandom(2 * ROOM).hex()


@pytest.fixture
def small(tables: Tables, require: Require) -> Iterator[Tables]:
    """The place is a small file system of its own."""
    with small_disk(tables.place, SIZE, require):
        yield tables


def filled(tables: Tables) -> Path:
    """There is room for the entries of a log, and for no more."""
    file = tables.place / "full"
    with file.open("ab", buffering=0) as full:
        while (now := os.statvfs(file)).f_bavail * now.f_frsize > ROOM:
            full.write(b"x" * 4096)
    return file


def test_full_while_rows_are_staged(small: Tables) -> None:
    small.create()
    full = filled(small)
    with pytest.raises(txpool.OperationalError, match="No space left on device"), txpool.transaction():
        small.append(1, part=LARGE)
    full.unlink()
    assert small.committed() == []
    assert small.left() == []


def test_full_when_the_rows_are_tried_is_no_hazard(small: Tables) -> None:
    """The table has changed in doubt, and would take them: only the disk does not."""
    small.create()
    with small.left_prepared():
        small.append(1, part=LARGE)
    DeltaTable(str(small.place / "orders")).alter.add_constraint({"positive": "n > 0"})
    full = filled(small)
    small.scan()
    assert len(small.left()) == 2
    full.unlink()
    small.scan()
    assert small.committed() == [1]
    assert heuristics() == []
    assert small.left() == []
