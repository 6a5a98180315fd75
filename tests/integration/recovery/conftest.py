from __future__ import annotations

import pytest

from txpool.resources.postgresql.driver import PsycopgDriver
from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The users of the connections that this process has opened, or tried to open, to PostgreSQL."""
    found: list[str] = []
    connect = PsycopgDriver.connect

    def counting(driver: PsycopgDriver, timeout: float | None = None) -> PsycopgRawConnection:
        found.append(driver._settings.name)
        return connect(driver, timeout)

    monkeypatch.setattr(PsycopgDriver, "connect", counting)
    return found
