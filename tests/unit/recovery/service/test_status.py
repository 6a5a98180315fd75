"""The status page over HTTP: what is there, who may have it, and that looking disturbs nothing."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from typing import TYPE_CHECKING

import pytest

from recovery import RecoveryManager
from recovery.operator.last_scan import DatasourceStatus, Overview, Standing
from recovery.operator.listing import BranchState
from recovery.scan.report import Alarm, Ended, ScanReport
from recovery.service.page import StateLine, age, page, state_line
from recovery.service.status import StatusServer
from tests.models.recovery import RecoveryWorld, logged, world_after
from tests.support.waiting import until
from tests.unit.recovery.service.status_client import BEARER, TOKEN, doubt, get, overview
from txpool.config.address import Address
from txpool.config.properties import Properties, Secret
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError, OperationalError
from txpool.metrics import instruments
from txpool.resources.recovery_access import PreparedBranch
from txpool.tm.commit.progress import PhaseTwoProgress

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


@pytest.fixture
def world() -> RecoveryWorld:
    return world_after(logged, "decided")


@pytest.fixture
def server(world: RecoveryWorld) -> Iterator[StatusServer]:
    with closing(StatusServer(world.recovery, Address("127.0.0.1", 0))) as server:
        yield server
    instruments.armed = False


@pytest.fixture
def guarded(world: RecoveryWorld) -> Iterator[StatusServer]:
    with closing(StatusServer(world.recovery, Address("127.0.0.1", 0), Secret(TOKEN))) as server:
        yield server
    instruments.armed = False


# -- what there is ------------------------------------------------------------------------------------------------


def test_it_shows_what_the_last_scan_has_left(world: RecoveryWorld, server: StatusServer) -> None:
    assert "The first scan is under way" in get(server).text
    assert json.loads(get(server, "api/in-doubt").text) == {"at": None, "in_doubt": []}
    world.b.reachable = False
    world.scan()
    text = unescape(get(server).text)
    for shown in (world.gtrid, "b is down", "keep the decision until b answers", "unreachable", "1 alarm"):
        assert shown in text
    listed = json.loads(get(server, "api/in-doubt").text)
    assert [each["gtrid"] for each in listed["in_doubt"]] == [world.gtrid]
    assert 'txpool_recovery_datasource_reachable{datasource="b"}' not in get(server, "metrics").text
    world.recovery.start()
    assert 'txpool_recovery_datasource_reachable{datasource="b"} 0.0' in get(server, "metrics").text
    world.recovery.stop()
    world.b.reachable = True
    world.scan()
    assert "Nothing is in doubt" in get(server).text
    assert get(server, "nothing").status == 404
    assert get(server, "metrics", method="PUT").status == 501


def test_looking_asks_no_database_and_waits_for_no_scan(world: RecoveryWorld, server: StatusServer) -> None:
    world.scan()
    reached, go = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number > before:  # the second of the two databases, which are asked at the same time
            reached.set()
        go.wait(60)

    before = len(world.calls.names)
    world.calls.before = hold
    scanning = threading.Thread(target=world.scan)
    scanning.start()
    try:
        assert reached.wait(60)
        calls = len(world.calls.names)
        for path in ("", "metrics", "healthz", "api/in-doubt"):
            assert get(server, path).status == 200
        assert len(world.calls.names) == calls
    finally:
        go.set()
        scanning.join()


def test_health_is_that_scans_are_completed(world: RecoveryWorld, server: StatusServer) -> None:
    assert get(server, "healthz").status == 200
    world.recovery.last_scan.failed(OSError("the log is on a bad disk"))
    got = get(server, "healthz")
    assert (got.status, "bad disk" in got.text) == (503, True)
    assert "The last scan failed" in get(server).text
    world.scan()
    assert get(server, "healthz").status == 200
    world.recovery.period = -1000.0
    assert get(server, "healthz").status == 503


def healthy(server: StatusServer) -> bool:
    """What /metrics and /healthz say, which is the same."""
    found = re.search(r"^txpool_recovery_healthy ([01])\.0$", get(server, "metrics").text, re.MULTILINE)
    assert found is not None
    status = get(server, "healthz").status
    assert status == (200 if found[1] == "1" else 503)
    return status == 200


def test_an_error_that_names_a_file_of_another_encoding_hides_no_page(
    world: RecoveryWorld, server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("txpool.recovery"), "disabled", True)  # pytest's workers cannot send it on
    error = OperationalError(os.fsdecode(b"/data/caf\xe9.csv is missing"))
    world.recovery.last_scan.failed(error)
    assert "caf\\udce9.csv" in get(server, "healthz").text

    def recover() -> list[PreparedBranch]:
        raise error

    monkeypatch.setattr(world.b, "recover", recover)
    world.scan()
    got = get(server)
    assert (got.status, "caf\\udce9.csv" in unescape(got.text)) == (200, True)
    assert json.loads(get(server, "api/in-doubt").text)["in_doubt"]


def test_health_and_metrics_agree(world: RecoveryWorld, server: StatusServer) -> None:
    manager, go = world.recovery, threading.Event()

    def hold(_: int) -> None:
        assert go.wait(60)

    world.calls.before = hold
    manager.start()
    try:
        assert healthy(server), "before the first scan"
        manager.period = -1000.0
        assert not healthy(server), "the first scan takes too long"
        manager.period = 3600.0
        manager.last_scan.failed(OSError("the log is on a bad disk"))
        assert not healthy(server)
        fresh = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0)
        fresh.last_scan.continue_from(manager.last_scan)
        assert "bad disk" in fresh.last_scan.unhealthy(), "a reload mends nothing"
        go.set()
        until(lambda: manager.last_report)
        assert healthy(server)
    finally:
        go.set()
        manager.stop()


def test_an_answer_is_of_one_moment(world: RecoveryWorld, server: StatusServer) -> None:
    """A scan that ends while an answer is made changes nothing in it."""
    world.scan()
    last_scan = world.recovery.last_scan
    samples = last_scan.samples()
    first = next(samples)
    last_scan.failed(OSError("the log is on a bad disk"))
    rest = {(each.family.name, *each.labels): each.value for each in samples}
    assert (first.value, rest["txpool_recovery_scans_total", "failed"]) == (1, 0)
    assert get(server, "healthz").status == 503


def test_without_prometheus_the_metrics_say_what_to_install(python_without: PythonWithout) -> None:
    source = """
import sys
from contextlib import closing
from recovery.service import status
from txpool.config.address import Address
import urllib.request, urllib.error
with closing(status.StatusServer(None, Address("127.0.0.1", 0))) as server:
    try:
        urllib.request.urlopen(server.url + "metrics")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode(), file=sys.stderr)
"""
    said = python_without("prometheus_client", source)
    assert said.startswith("501 ")
    assert "pip install 'txpool[metrics]'" in said


# -- who may ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8080", "[::1]:9464", "127.0.0.2"])
def test_it_answers_to_the_names_of_this_machine(server: StatusServer, host: str) -> None:
    assert get(server, Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "localhost.evil.example", "10.0.0.1", "", "[x]"])
@pytest.mark.parametrize("path", ["", "metrics", "healthz", "api/in-doubt"])
def test_it_answers_to_no_other_name(server: StatusServer, host: str, path: str) -> None:
    got = get(server, path, Host=host)
    assert got.status == 421
    assert "gtrid" not in got.text


def test_a_page_of_another_site_gets_nothing(guarded: StatusServer, world: RecoveryWorld) -> None:
    host = guarded.url.removeprefix("http://").rstrip("/")
    assert get(guarded, Origin=f"http://{host}").status == 200
    for origin in ("http://evil.example", "null", f"https://{host}", "http://127.0.0.1:1"):
        assert get(guarded, Origin=origin).status == 403
        assert get(guarded, "api/scan", method="POST", Origin=origin, **BEARER).status == 403
    for site in ("cross-site", "same-site"):
        assert get(guarded, "api/scan", method="POST", Sec_Fetch_Site=site, **BEARER).status == 403
    # A link to it is none of that.
    assert get(guarded, Sec_Fetch_Site="cross-site").status == 200
    assert world.calls.names == []


def test_without_a_token_it_only_shows(server: StatusServer, world: RecoveryWorld) -> None:
    got = get(server, "api/scan", method="POST")
    assert (got.status, "status.token" in got.text) == (403, True)
    assert get(server, "api/scan", method="POST", **BEARER).status == 403
    assert get(server, "api/scan").status == 404
    assert "Scan now" not in get(server).text
    assert world.calls.names == []


def test_with_the_token_a_scan_can_be_asked_for(guarded: StatusServer, world: RecoveryWorld) -> None:
    assert "Scan now" in get(guarded).text
    world.recovery.period = 3600.0
    scanned = threading.Semaphore(0)

    def note(number: int) -> None:
        if world.calls.names[number] == "incarnations":
            scanned.release()

    world.calls.before = note
    world.recovery.start()
    assert scanned.acquire(timeout=60)
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    for authorization in (f"Bearer {TOKEN}", f"Basic {basic}"):
        assert get(guarded, "api/scan", method="POST", Authorization=authorization).status == 202
        assert scanned.acquire(timeout=60)
    wrong = base64.b64encode(b"anybody:wrong").decode()
    for authorization in ("", "Bearer", "Bearer wrong", f"Basic {wrong}", "Basic =", f"Digest {TOKEN}x", "Bearer \xe9"):
        got = get(guarded, "api/scan", method="POST", Authorization=authorization)
        assert got.status == 401
        assert got.headers["WWW-Authenticate"].startswith("Basic ")
    world.recovery.stop()
    assert not scanned.acquire(blocking=False)


def test_beyond_loopback_everything_takes_the_token(world: RecoveryWorld) -> None:
    with closing(StatusServer(world.recovery, Address("0.0.0.0", 0), Secret(TOKEN))) as server:
        for path in ("", "metrics", "healthz", "api/in-doubt", "nothing"):
            assert get(server, path).status == 401
            assert get(server, path, Host="txpool.example", **BEARER).status == (404 if path == "nothing" else 200)
    instruments.armed = False


@pytest.mark.parametrize("public", [(), ("healthz",), ("metrics",), ("healthz", "metrics")])
def test_what_the_file_names_takes_no_token(world: RecoveryWorld, public: tuple[str, ...]) -> None:
    token = Secret(TOKEN)
    with closing(StatusServer(world.recovery, Address("0.0.0.0", 0), token, public=public)) as server:
        for path in ("", "metrics", "healthz", "api/in-doubt", "metrics/", "api/healthz"):
            assert get(server, path).status == (200 if path in public else 401)
            assert get(server, path, method="POST").status == 401
        assert get(server, "api/scan", method="POST").status == 401
    instruments.armed = False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("status.public = healthz, page", "is not right: write healthz, metrics or both"),
        ("status.address = 0.0.0.0:9464", "can be reached from other machines: write status.token"),
        ("status.address = txpool.example:9464", "can be reached from other machines"),
        ("status.address = 127.0.0.1", "is no address: write a host and a port, such as 127.0.0.1:9464"),
        ("status.address = 127.0.0.1:99999", "is no address"),
        ("status.adress = 127.0.0.1:9464", "did you mean status.address?"),
        ("alarm.slots = 80", "is no share: write a number above 0 and up to 1, such as 0.8, or none"),
        ("alarm.slots = 0", "is no share"),
        ("alarm.in-doubt = 0", "must be longer than nothing"),
    ],
)
def test_a_wrong_configuration(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoverySettings.load(Properties.parse(text, path="conf/recovery.properties"))
    assert str(caught.value).startswith("conf/recovery.properties:1: ")
    assert message in str(caught.value)


def test_a_right_configuration() -> None:
    settings = RecoverySettings.load(status_address="[::1]:9464", alarm_slots="none", alarm_in_doubt="10m")
    assert settings.status_address == Address("::1", 9464)
    assert (settings.alarm_in_doubt, settings.alarm_slots, settings.status_token) == (600.0, None, None)
    beyond = RecoverySettings.load(status_address="0.0.0.0:9464", status_token=TOKEN)
    assert beyond.status_token is not None
    assert beyond.status_token.reveal() == TOKEN
    assert TOKEN not in repr(beyond)
    assert RecoverySettings.load().status_address is None


def test_an_address_that_is_taken_is_an_error_that_names_it(world: RecoveryWorld, server: StatusServer) -> None:
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    with pytest.raises(ConfigurationError, match=rf"status\.address = 127\.0\.0\.1:{port}: Address already in use"):
        StatusServer(world.recovery, Address("127.0.0.1", port))


# -- the page itself ----------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'&"


def shown(seen: Overview) -> str:
    return page(Standing(seen), title="Recovery of node etl-1", period=120, pools=(), acts=False)


def test_whatever_comes_from_elsewhere_is_text() -> None:
    branch = BranchState(HOSTILE, HOSTILE, "prepared")
    text = shown(
        overview(
            report=ScanReport(
                committed=(Ended(HOSTILE, HOSTILE, HOSTILE),),
                errors={HOSTILE: HOSTILE},
                suspended=HOSTILE,
                alarms=(Alarm("unreachable", HOSTILE, HOSTILE),),
            ),
            in_doubt=(doubt(gtrid=HOSTILE, standing=HOSTILE, next=HOSTILE, kept=HOSTILE, branches=(branch,)),),
            datasources=(DatasourceStatus(HOSTILE, "xa", False, HOSTILE),),
        )
    )
    assert HOSTILE not in text
    assert text.count("<script") == 1
    assert not re.search(r"""(src|href)=["'](?!/|data:)""", text), "it needs something from elsewhere"
    assert "style=" not in text


@pytest.mark.parametrize(
    ("seen", "mood", "headline"),
    [
        (overview(), "good", "Nothing is in doubt"),
        (overview(in_doubt=(doubt(attention=False),)), "good", "Nothing is in doubt"),
        (overview(in_doubt=(doubt(), doubt(gtrid="h"))), "wait", "2 transactions in doubt"),
        (overview(report=ScanReport(suspended="by me")), "wait", "Recovery is suspended"),
        (overview(report=ScanReport(errors={"module": "no"})), "bad", "A step of the last scan failed"),
        (overview(report=ScanReport(alarms=(Alarm("slots", "a", ""),))), "bad", "1 alarm"),
    ],
)
def test_the_headline_is_what_matters_most(seen: Overview, mood: str, headline: str) -> None:
    assert state_line(Standing(seen)) == StateLine(mood, headline)


def test_of_thousands_a_page_shows_the_first_and_says_so() -> None:
    text = shown(overview(in_doubt=tuple(doubt(gtrid=f"gtrid-{n:04}") for n in range(3000))))
    assert "gtrid-0049" in text
    assert "gtrid-0050" not in text
    assert "2950 more are not shown" in text


def test_nothing_may_run_but_its_own_script(server: StatusServer) -> None:
    headers = get(server).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (90, "1.5 min"), (3600, "1 h"), (43200, "12 h"), (2e5, "2.3 d")],
)
def test_ages_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_a_manager_without_a_file_says_whose_it_is(world: RecoveryWorld) -> None:
    assert world.recovery.described_nodes == "node etl-1"
    assert "node etl-1" in repr(RecoveryManager(log=world.log, datasources=[world.a]))


def test_the_list_comes_in_parts(server: StatusServer, world: RecoveryWorld) -> None:
    found = overview(in_doubt=tuple(doubt(gtrid=f"gtrid-{number}") for number in range(5)))
    world.recovery.last_scan.standing = Standing(found)
    part = json.loads(get(server, "api/in-doubt?from=3&limit=9").text)
    assert [each["gtrid"] for each in part["in_doubt"]] == ["gtrid-3", "gtrid-4"]
    assert (part["total"], part["at"]) == (5, found.at)
    for wrong in ("from=1", "limit=1&from=1", "from=-1&limit=1", "from=0&limit=1&x=y"):
        assert get(server, f"api/in-doubt?{wrong}").status == 400


def test_it_tells_how_many_branches_the_pass_under_way_has_ended(server: StatusServer, world: RecoveryWorld) -> None:
    progress = PhaseTwoProgress("recovery")
    world.recovery.last_scan.under_way = progress
    assert "under way: " not in get(server).text
    progress.total = 10_000
    assert "A scan is under way: 0 of 10,000 branches ended." in get(server).text
    world.recovery.scan()
    assert world.recovery.last_scan.under_way is None
