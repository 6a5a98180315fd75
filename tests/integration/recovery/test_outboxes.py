"""Recovery shows the outboxes: on the page, in `list`, in JSON, in the metrics. It locks and delivers nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import txpool
from recovery import RecoveryManager
from recovery.cli import ExitCode
from recovery.scan.outboxes import OutboxStatus
from tests.support.recovery_site import Site, daemon, extend, get
from txpool import ConfigurationError, DataSource, Outbox
from txpool.outbox import Message


@pytest.fixture
def sent(site: Site) -> Site:
    """Outboxes in two datasources: one with three messages, one of them parked, and an empty one."""
    txpool.configure(site.folder / "txpool.properties")
    for name in ("one", "ledger"):
        path = site.folder / f"{name}.properties"
        site.write(name, f"{path.read_text()}outbox.deliver = shop:deliver\noutbox.attempts = 1")
        with DataSource.from_properties(path) as source:
            outbox = Outbox(source)
            outbox.create()
            if name == "one":
                with txpool.transaction():
                    for each in ("bad", "two", "three"):
                        outbox.send(each, key="k")
                outbox.relay(_fail).deliver_all()
    txpool.configure()
    return site


def _fail(_: Message) -> None:
    raise ValueError("nobody\ndelivers <this>")


def test_what_is_shown(sent: Site) -> None:
    listed = sent.command("list")
    assert listed.returncode == ExitCode.OK, listed.stderr
    assert "outbox of one\n  waiting     2, the oldest for " in listed.stdout
    assert "parked      1; last error: ValueError: nobody delivers <this>" in listed.stdout
    assert "outbox of ledger\n  waiting     0" in listed.stdout
    one, ledger = json.loads(sent.command("list", "--outboxes", "--json").stdout)
    assert (one["datasource"], one["waiting"], one["parked"], one["reason"]) == ("one", 2, 1, "")
    assert one["oldest"] >= 0
    assert ledger == {
        "datasource": "ledger",
        "waiting": 0,
        "oldest": None,
        "parked": 0,
        "last_error": None,
        "reason": "",
        "kind": "outbox",
    }
    extend(sent, "status.address = 127.0.0.1:0")
    with daemon(sent) as (_, url):
        page, metrics = get(url), get(f"{url}metrics")
        found = json.loads(get(f"{url}api/outboxes"))
    assert [each["waiting"] for each in found["outboxes"]] == [2, 0]
    assert "<h2>Outboxes and sessions</h2>" in page
    assert "ValueError: nobody delivers &lt;this&gt;" in page
    assert 'txpool_outbox_waiting{datasource="one"} 2.0' in metrics
    assert 'txpool_outbox_parked{datasource="one"} 1.0' in metrics
    assert 'txpool_outbox_oldest_seconds{datasource="ledger"} 0.0' in metrics


def test_a_session_is_shown_with_what_it_has_parked(sent: Site) -> None:
    """As an outbox is; the tables are not made by the look."""
    for name, where in (("orders-in", "one"), ("orders-none", "two")):
        queue = f"queue = {name}\nqueue.datasource = {where}.properties\nparking.after = 1"
        sent.write(name, f"driver = sql-queue\n{queue}")
    text = sent.conf.read_text().replace(
        "datasources = ", "datasources = orders-in.properties, orders-none.properties, "
    )
    sent.conf.write_text(text)
    txpool.configure(sent.folder / "txpool.properties")
    session = txpool.session(sent.folder / "orders-in.properties")
    for each in ("bad", "two"):
        session.send(each)

    @txpool.consumer(session)
    def work(_: object) -> None:
        raise ValueError("nobody ships <this>")

    work.run(once=True)
    session.send("three")
    txpool.configure()
    listed = sent.command("list")
    assert "session orders-in\n  waiting     1, the oldest for " in listed.stdout
    assert "parked      2; last error: ValueError: nobody ships <this>" in listed.stdout
    found = {each["datasource"]: each for each in json.loads(sent.command("list", "--outboxes", "--json").stdout)}
    assert {found[name]["kind"] for name in ("orders-in", "orders-none")} == {"session"}
    none = found["orders-none"]
    assert (none["waiting"], none["parked"], none["reason"]) == (0, 0, "")
    assert sent.databases.rows("two", "select to_regclass('txpool_spark.messages')") == [(None,)]


def test_which_ones_are_shown(sent: Site) -> None:
    text = sent.conf.read_text().strip()
    for names, shown in (("none", []), ("one", ["one"]), ("two, one", ["one", "two"])):
        sent.write("recovery", f"{text}\nrecovery.outboxes = {names}")
        with closing(sent.manager()) as manager:
            manager.scan()
            overview = manager.last_scan.overview
            assert overview is not None
            assert sorted(each.datasource for each in overview.outboxes) == shown
    two = next(each for each in overview.outboxes if each.datasource == "two")
    assert two == OutboxStatus("two", reason="it has no outbox")
    sent.write("recovery", f"{text}\nrecovery.outboxes = unheard-of")
    with pytest.raises(ConfigurationError, match=r"recovery\.outboxes names unheard-of"):
        RecoveryManager(sent.conf)


def test_one_that_cannot_be_read_does_not_disturb_the_scan(sent: Site, tmp_path: Path) -> None:
    sent.databases.execute("one", "comment on table txpool_spark.outbox is 'txpool format 2'")
    with closing(sent.manager()) as manager:
        report = manager.scan()
        overview = manager.last_scan.overview
    assert overview is not None
    assert (report.errors, dict(report.unreachable), report.alarms) == ({}, {}, ())
    assert "has txpool format 2" in overview.outboxes[0].reason
    assert overview.outboxes[1].waiting == 0
    assert "not read" in sent.command("list").stdout
    assert sent.command("list", "--outboxes").returncode == ExitCode.UNREACHABLE


def test_it_waits_for_no_lock(sent: Site) -> None:
    """A relay and a sender hold rows and locks of keys meanwhile."""
    txpool.configure(sent.folder / "txpool.properties")
    with DataSource.from_properties(sent.folder / "one.properties") as source:
        outbox = Outbox(source)
        with txpool.transaction():
            outbox.send("not committed", key="k")
            with closing(source.connect()) as connection:
                connection.execute("select from txpool_spark.outbox for update")
            with closing(sent.manager()) as manager:
                found = manager.outboxes()
    txpool.configure()
    assert [(each.waiting, each.parked) for each in found] == [(2, 1), (0, 0)]


def test_no_session_waits_on_for_a_lock_of_the_table(sent: Site) -> None:
    """Each scan would leave one more behind."""
    with psycopg.connect(sent.databases.dsn("one")) as other:
        other.execute("lock table txpool_spark.outbox in access exclusive mode")
        with closing(sent.manager()) as manager:
            found = next(each for each in manager.outboxes() if each.datasource == "one")
        waiting = sent.databases.rows("one", "select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
    assert "lock timeout" in found.reason
    assert waiting == [(0,)]
