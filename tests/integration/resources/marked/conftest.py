"""The marked datasource, of all kinds or of one, with its table or bare of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.resources.marked.ledger import Ledger, opened


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql8"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened(request.param, tmp_path, request) as ledger:
        yield ledger


@pytest.fixture
def ledger(bare: Ledger) -> Ledger:
    bare.xids.create()
    return bare


@pytest.fixture
def pg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened("postgresql", tmp_path, request) as ledger:
        ledger.xids.create()
        yield ledger


@pytest.fixture
def lite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened("sqlite", tmp_path, request) as ledger:
        ledger.xids.create()
        yield ledger
