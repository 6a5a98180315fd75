"""A living process that hangs after its prepares: what recovery tells of it, and what it does where it may."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import ExitCode
from recovery.scan import snapshot
from tests.support.recovery_site import BOTH, HOLDER, Site
from tests.support.waiting import until

#: A process that has prepared would decide at once, but for this.
PREPARED = "coordinator.prepared=hang"


@pytest.fixture(params=["sqlite", "sql"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, databases: Any) -> Site:
    return Site(tmp_path, databases, store=request.param)


@contextmanager
def stopped(site: Site, *names: str, timeout: str = "2", source: str = HOLDER) -> Iterator[tuple[Any, str]]:
    """A process that is prepared, and is stopped by SIGSTOP; its gtrid."""
    text = (site.folder / "txpool.properties").read_text().strip()
    site.write("txpool", f"{text}\ntransaction.timeout = {timeout}")
    process = site.process(source, *names, failpoints=PREPARED)
    try:
        gtrid = process.stdout.readline().strip()
        prepared = set(names) & set(BOTH)
        until(lambda: len(site.databases.prepared()) >= len(prepared) or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        os.kill(process.pid, signal.SIGSTOP)
        yield process, gtrid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_38_a_stopped_process_is_told_of_by_scan_list_and_show(stored: Site) -> None:
    with stopped(stored, *BOTH) as (process, gtrid):
        until(lambda: stored.command("scan").returncode == ExitCode.OVERDUE)
        listed = stored.command("list")
        assert listed.returncode == ExitCode.IN_DOUBT
        assert "See whether it hangs" in listed.stdout
        (alarm,) = json.loads(stored.command("scan", "--json").stdout)["alarms"]
        assert (alarm["kind"], alarm["subject"]) == ("overdue", gtrid)
        assert "within 2 s" in alarm["text"]
        assert len(stored.databases.prepared()) == 2
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: stored.command("scan").returncode == ExitCode.OK)
    assert stored.databases.prepared() == []
    assert stored.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_38_without_a_timeout_nobody_can_tell(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MARGIN_SECONDS", 0.0)
    with stopped(site, *BOTH, timeout="none"), closing(site.manager()) as manager:
        assert manager.scan().alarms == ()
