"""Recovery that goes on by itself: the daemon and its signals, and the thread in an application."""

from __future__ import annotations

import logging

import pytest

from tests.support.recovery_site import BOTH, DAEMON, WRITER, Site, lines_until, prepare
from txpool.xid import make_gtrid, make_xid


def test_the_daemon_recovers_reloads_and_ends_cleanly(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    stranger = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
    prepare(site, "one", stranger)
    process = site.process(DAEMON)
    try:
        lines_until(process, "recovery runs with", "forgot", "strange00000")
        assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
        right = site.conf.read_text()
        site.write("recovery", "node.name = etl-1\nnonsense = 1")
        process.send_signal(1)
        lines_until(process, "SIGHUP: ", "goes on with the configuration that it had")
        site.write("recovery", right.replace("recovery.period = 3600", "recovery.period = 1800").strip())
        process.send_signal(1)
        lines_until(process, "every 1800 s")
        process.terminate()
        _, rest = process.communicate(timeout=600)
        assert process.returncode == 0, rest
        assert "ended" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.communicate()
    assert site.databases.prepared() == [stranger]


def test_the_daemon_says_at_its_end_what_is_pending(site: Site) -> None:
    stranger = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
    prepare(site, "one", stranger)
    process = site.process(DAEMON)
    try:
        lines_until(process, "strange00000")
        process.send_signal(2)
        _, rest = process.communicate(timeout=600)
        assert process.returncode == 0, rest
        assert f"still pending: {stranger}" in rest
    finally:
        process.kill()
        process.communicate()


def test_the_thread_in_an_application_recovers_too(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txpool.recovery")
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    manager = site.manager()
    manager.start()
    manager.close()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
    assert site.marks() == []
    assert "committed in ledger, which decides it" in caplog.text
