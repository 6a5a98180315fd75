"""What the daemon says when it ends."""

from __future__ import annotations

import logging

import pytest

from recovery.service import daemon
from tests.models.recovery import RecoveryWorld
from txpool.errors import LogError


def test_a_daemon_whose_last_scan_failed_does_not_say_that_nothing_is_pending(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = RecoveryWorld()
    world.scan()
    daemon._log_pending(world.recovery)
    assert caplog.messages[-1] == "recovery has ended; its last pass left nothing pending"
    world.recovery.last_scan.failed(LogError("the log is gone"))
    daemon._log_pending(world.recovery)
    assert "its last scan failed: LogError: the log is gone" in caplog.messages[-1]
