"""The daemon's status page over real databases, in a real browser; and alarms as an operator meets them."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from html import unescape
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery.cli import ExitCode
from recovery.service.status import Response, StatusServer
from tests.support.recovery_site import SERVED, WRITER, Site, address_in, daemon, extend, get, prepare, until
from txpool import failpoints
from txpool.config.address import Address
from txpool.errors import TransactionInDoubt
from txpool.metrics import catalogue, collect, instruments
from txpool.resources.recovery_access import PreparedSlots
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure, get_manager
from txpool.xid import make_gtrid, make_xid, parse

if TYPE_CHECKING:
    from tests.conftest import Browse

STRANGER = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
TOKEN = "a token of the page"


@pytest.mark.costly
def test_an_operator_sees_what_is_in_doubt_and_why(site: Site, browse: Browse, tmp_path: Path) -> None:
    site.killed(WRITER, "one", "two", failpoints="coordinator.decided=kill")
    (gid,) = [gid for gid in site.databases.prepared() if ":two:" in gid]
    xid = parse(gid)
    assert xid is not None
    gtrid = xid.gtrid
    right = (site.folder / "two.properties").read_text()
    site.write("two", right.replace(f":{site.databases.server.port}/", ":1/").strip())
    prepare(site, "one", STRANGER)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    extend(site, "status.address = 127.0.0.1:0", "status.token = ${file:token}", "alarm.in-doubt = 1ms")
    with daemon(site) as (process, url):
        pictures = [tmp_path / f"status-{mode}.png" for mode in ("light", "dark")]
        pages = [
            unescape(browse(url, f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={1 - number}"))
            for number, picture in enumerate(pictures)
        ]
        for text in pages:
            assert f"<code>{gtrid}</code>" in text
            assert f'data-copy="{gtrid}"' in text
            for shown in ("keep the decision until two answers", "incarnation is unknown to this log", "3 alarms"):
                assert shown in text
        for picture in pictures:
            assert picture.read_bytes().startswith(b"\x89PNG")
        assert pictures[0].read_bytes() != pictures[1].read_bytes()
        everything = pages[0] + get(f"{url}metrics") + get(f"{url}api/in-doubt") + get(f"{url}healthz")
        assert TOKEN not in everything
        assert site.databases.server.password not in everything
        metrics = get(f"{url}metrics")
        assert 'txpool_alarms{alarm="overdue"} 2.0' in metrics
        assert 'txpool_recovery_datasource_reachable{datasource="two"} 0.0' in metrics
        assert 'txpool_indoubt_branches{datasource="one"} 1.0' in metrics
        assert gtrid not in metrics
        request = urllib.request.Request(f"{url}api/scan", method="POST", headers={"Authorization": f"Bearer {TOKEN}"})
        urllib.request.urlopen(request, timeout=60).close()
        while 'txpool_recovery_scans_total{result="completed"} 2.0' not in get(f"{url}metrics"):
            assert process.poll() is None
        assert until(process, "alarm, unreachable: datasource two has not answered").count("alarm, overdue") == 2
        site.write("two", right.strip())
        process.send_signal(signal.SIGHUP)
        said = until(process, "the alarm is over, unreachable two")
        assert "alarm, " not in said
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}


def test_a_reload_moves_the_page(site: Site) -> None:
    extend(site, "status.address = 127.0.0.1:0")
    with daemon(site) as (process, url):
        site.write("recovery", site.conf.read_text().replace("127.0.0.1:0", "localhost:0").strip())
        process.send_signal(signal.SIGHUP)
        moved = address_in(until(process, SERVED))
        assert moved != url
        assert "Recovery of node etl-1" in get(moved)
        with pytest.raises(OSError):
            get(url)


def test_a_page_that_cannot_be_served_does_not_keep_recovery_from_its_work(site: Site) -> None:
    site.killed(WRITER, "one", "two", failpoints="coordinator.decided=kill")
    with closing(StatusServer(site.manager(), Address("127.0.0.1", 0))) as other:
        extend(site, f"status.address = {other.url.removeprefix('http://').rstrip('/')}")
        process = site.daemon()
        try:
            said = until(process, r"(?s)recovery goes on without it.*forgot|forgot.*recovery goes on without it")
        finally:
            process.kill()
            process.communicate()
    instruments.armed = False
    assert "Address already in use" in said
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}


class Turning(StatusServer):
    """Does something once the page has been served for the first time."""

    def __init__(self, turn: Callable[[Turning], object], *arguments: Any) -> None:
        self.turn: Callable[[Turning], object] | None = turn
        super().__init__(*arguments)

    def respond(self, request: BaseHTTPRequestHandler) -> Response:
        if request.path == "/" and (turn := self.turn) is not None:
            first, self.turn = super().respond(request), None
            turn(self)
            return first
        return super().respond(request)


@pytest.fixture
def turning(site: Site) -> Iterator[Callable[[Callable[[Turning], object]], Turning]]:
    opened: list[Turning] = []
    manager = site.manager()

    def start(turn: Callable[[Turning], object]) -> Turning:
        opened.append(Turning(turn, manager, Address("127.0.0.1", 0)))
        return opened[0]

    manager.scan()
    start.manager = manager  # type: ignore[attr-defined]
    yield start
    for server in opened:
        with suppress(OSError):
            server.close()
    manager.close()
    instruments.armed = False


def test_an_open_page_refreshes_itself(site: Site, turning: Any, browse: Browse) -> None:
    def turn(_: Turning) -> None:
        prepare(site, "one", STRANGER)
        turning.manager.scan()

    text = browse(turning(turn).url, "--virtual-time-budget=8000")
    assert "1 transaction in doubt" in text
    assert STRANGER in text
    assert "<title>1 transaction in doubt" in text
    assert 'class="silent"' not in text


def test_an_open_page_says_that_the_daemon_is_gone(turning: Any, browse: Browse) -> None:
    def refuse(server: Turning) -> None:
        server.respond = lambda _: Response("", status=503)  # type: ignore[method-assign,assignment,arg-type]

    text = browse(turning(refuse).url, "--virtual-time-budget=8000")
    assert 'class="silent"' in text
    assert "Nothing is in doubt" in text


# -- alarms -------------------------------------------------------------------------------------------------------


def test_alarms_are_exit_codes_of_a_scan(site: Site) -> None:
    prepare(site, "one", STRANGER)
    quiet = site.command("scan")
    assert quiet.returncode == ExitCode.IN_DOUBT, quiet.stderr
    assert "alarm" not in quiet.stdout + quiet.stderr
    extend(site, "alarm.slots = 0.001")
    short = site.command("scan", "--json")
    assert short.returncode == ExitCode.SLOTS
    assert {alarm["kind"] for alarm in json.loads(short.stdout)["alarms"]} == {"slots"}
    assert "alarm, slots: the server of " in short.stderr
    extend(site, "alarm.in-doubt = 1ms")
    overdue = site.command("scan")
    assert overdue.returncode == ExitCode.OVERDUE
    assert STRANGER.rsplit(":", 3)[0] in overdue.stdout
    assert "alarm, overdue: " in overdue.stderr


def test_slots_are_the_servers_own_count(site: Site) -> None:
    (before,) = site.databases.rows("one", "select current_setting('max_prepared_transactions')::int")[0]
    prepare(site, "one", STRANGER)
    prepare(site, "two", "another product's transaction")
    with closing(site.manager()) as manager:
        manager.scan()
        assert manager.last_scan.overview is not None
        found = {each.name: (each.slots, each.prepared) for each in manager.last_scan.overview.datasources}
    assert found["one"] == (PreparedSlots(before, 2), 1)
    assert found["two"] == (PreparedSlots(before, 2), 0)
    assert found["ledger"] == (None, 0)


def test_a_transaction_in_doubt_is_counted_and_counted_again_when_it_is_settled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txpool.datasource import connect

    def read(family: catalogue.Family, *labels: str) -> float:
        return sum(each.value for each in collect() if each.family is family and each.labels == labels)

    monkeypatch.chdir(site.folder)
    configure("txpool.properties")
    doubts, settled = read(catalogue.ENDED, "in_doubt"), read(catalogue.SETTLED, "rolled_back")
    try:
        failpoints.arm("log.record")
        failpoints.arm("log.abort")
        with pytest.raises(TransactionInDoubt), transaction():
            for name in ("one", "two"):
                connect(f"{name}.properties").cursor().execute("insert into t values (1)")
        assert read(catalogue.ENDED, "in_doubt") == doubts + 1
        assert read(catalogue.UNSETTLED) == 1
        failpoints.disarm()
        while get_manager().in_doubt:
            pass
        assert read(catalogue.SETTLED, "rolled_back") == settled + 1
        assert read(catalogue.UNSETTLED) == 0
    finally:
        failpoints.disarm()
        configure(node_name="unit-test")
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}
