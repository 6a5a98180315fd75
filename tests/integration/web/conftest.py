"""One site for a module's servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.integration.web.served import Served
from tests.support.recovery_site import Site

if TYPE_CHECKING:
    from txpool.demo.server import EmbeddedPostgres


@pytest.fixture(scope="module")
def web_site(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Site:
    databases = Databases(postgres)
    databases.empty()
    return Site(tmp_path_factory.mktemp("web"), databases)


@pytest.fixture
def server(started: Served) -> Served:
    """What the module has `started`, with its databases empty."""
    started.afresh()
    return started
