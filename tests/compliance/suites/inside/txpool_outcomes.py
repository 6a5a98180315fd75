"""Inside a suite's process, a plugin of pytest: which tests run, how long one may take, and what came of each.

Its settings come by the environment, as JSON in TXPOOL_SUITE: `handle`, whether txpool stands in for the drivers;
`left_out`, patterns of test ids; `seconds`, how long one test may take; `outcomes`, the file to write.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import txpool_dropin

_SUITE = json.loads(os.environ["TXPOOL_SUITE"])
#: By test id: passed, failed, skipped or error, and how it ended in a line.
outcomes: dict[str, tuple[str, str]] = {}

if _SUITE["handle"]:
    txpool_dropin.install()


def left_out(test: str) -> bool:
    """Whether a pattern leaves this test out."""
    return any(re.fullmatch(".*".join(map(re.escape, each.split("*"))), test) for each in _SUITE["left_out"])


def write() -> None:
    """Write the outcomes."""
    Path(_SUITE["outcomes"]).write_text(json.dumps(outcomes))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gone = [item for item in items if left_out(item.nodeid)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in set(gone)]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    try:
        from sqlalchemy.dialects.postgresql import provision
    except Exception:
        return
    provision._extensions.clear()  # the tests' server has none


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"{item.nodeid} has taken more than {_SUITE['seconds']} s")

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again, since a test may take the first for the error that it expects.
    signal.setitimer(signal.ITIMER_REAL, _SUITE["seconds"], 1)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    how = crash.message.splitlines()[0] if crash and crash.message else ""
    if report.failed:
        outcomes[report.nodeid] = ("failed" if report.when == "call" else "error", how)
    elif report.skipped:
        outcomes.setdefault(report.nodeid, ("skipped", how))
    elif report.when == "call":
        outcomes[report.nodeid] = ("passed", "")


def pytest_sessionfinish() -> None:
    write()
