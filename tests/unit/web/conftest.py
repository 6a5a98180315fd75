"""A WSGI server, and the database behind its applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txpool
from tests.unit.web.wsgi_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A WSGI server that notes what it hears, and a database behind it."""
    txpool.configure(node_name="unit-test")
    server = Server(tmp_path)
    with server.datasource:
        yield server
