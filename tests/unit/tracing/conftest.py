"""What tests of tracing stand on: each leaves this process as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txpool.tracing import opentelemetry as otel


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Afterwards nothing is traced."""
    yield
    otel.uninstrument()
