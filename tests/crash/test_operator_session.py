"""An operator's session in a terminal: what list, show, the page and the metrics say while it goes wrong, and after.

Every process is a real one: the coordinator, which is killed; two database servers; the daemon; each command; the
browser. The databases are read past txpool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery.cli import ExitCode
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.support.recovery_site import HOLDER, Site, daemon, end, extend, get, until
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Browse

OVERDUE, UNREACHABLE = 'txpool_alarms{alarm="overdue"}', 'txpool_alarms{alarm="unreachable"}'
ANSWERS, HOLDS = ('txpool_recovery_datasource_reachable{datasource="two"}', 'txpool_indoubt_branches{datasource="two"}')
OLDEST, OTHERWISE = "txpool_oldest_indoubt_seconds", "txpool_heuristic_transactions"
#: What a calm daemon's metrics say.
QUIET = {OVERDUE: 0.0, UNREACHABLE: 0.0, ANSWERS: 1.0, HOLDS: 0.0, OLDEST: 0.0, OTHERWISE: 0.0}


@pytest.fixture
def second(databases: Any) -> Iterator[EmbeddedPostgres]:
    """Another server, which has database two and the first one's password. A test may stop it."""
    server = EmbeddedPostgres(databases=["two"])
    server.password = databases.server.password
    with server:
        databases.elsewhere["two"] = server
        yield server


@pytest.fixture
def site(tmp_path: Path, databases: Any, second: EmbeddedPostgres, eventually: Eventually) -> Iterator[Site]:
    site = Site(tmp_path, databases)
    site.host("recovery", period="0.2")
    extend(site, "status.address = 127.0.0.1:0", "alarm.in-doubt = 1s")
    yield site
    # `second` is there no longer when the others are torn down.
    eventually.in_the(places.recovery_site(site))
    eventually.assert_ended()


@dataclass(frozen=True)
class OperatorConsole:
    """Where the operator sits: the commands, and the daemon with its page."""

    site: Site
    browse: Browse
    process: Any
    url: str

    def command(self, *arguments: str) -> tuple[int, str]:
        """A command in a terminal of 80 columns: how it ended, and what it said."""
        done = self.site.command(*arguments, columns=80)
        print(f"$ txpool-recovery {' '.join(arguments)}\n{done.stdout}{done.stderr}[{done.returncode}]\n")
        return done.returncode, done.stdout + done.stderr

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.site.command("list", "--json").stdout)
        return found

    def page(self, name: str) -> str:
        """What a browser has made of the page, with a picture of it."""
        picture = self.site.folder / f"{name}.png"
        text = unescape(self.browse(self.url, f"--screenshot={picture}"))
        assert picture.read_bytes().startswith(b"\x89PNG")
        return text

    def metrics(self) -> dict[str, float]:
        """Those that QUIET names, where there are any."""
        lines = [line.rpartition(" ") for line in get(f"{self.url}metrics").splitlines() if line[0] != "#"]
        found = {name: float(value) for name, _, value in lines}
        return {name: found[name] for name in QUIET if name in found}

    def wait_for(self, path: str, text: str) -> None:
        while text not in get(f"{self.url}{path}"):
            assert self.process.poll() is None, self.process.stderr.read()

    def assert_calm(self, name: str) -> None:
        """All four say that it is over, and so do a scan and the databases."""
        self.wait_for("healthz", ": nothing is in doubt")
        assert self.list() == []
        nothing = "Nothing is in doubt, as far as the datasources have answered.\n"
        assert self.command("list") == (ExitCode.OK, nothing)
        page = self.page(name)
        assert "<h1>Nothing is in doubt</h1>" in page
        assert "data-copy" not in page
        assert self.metrics() == QUIET
        assert self.command("scan") == (ExitCode.OK, "nothing to do\n")
        assert self.site.databases.prepared() == []
        assert self.site.kept() == {}


@pytest.fixture
def console(site: Site, browse: Browse) -> Iterator[OperatorConsole]:
    with daemon(site) as (process, url):
        yield OperatorConsole(site, browse, process, url)


@contextmanager
def decided(site: Site) -> Iterator[str]:
    """A coordinator that has decided, and has committed nowhere; then it is killed."""
    process = site.process(HOLDER, "one", "two", failpoints="coordinator.decided=hang")
    try:
        gtrid = process.stdout.readline().strip()
        while site.kept() != {"decisions": 1}:
            assert process.poll() is None, process.stderr.read()
        assert len(site.databases.prepared()) == 2
        yield gtrid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.costly
def test_a_database_is_away_and_a_person_meddles(
    console: OperatorConsole, second: EmbeddedPostgres, evidence: Evidence
) -> None:
    with decided(console.site) as gtrid:
        code, said = console.command("list")
        assert (code, "leave it alone: its process is alive" in said) == (ExitCode.OK, True)
        second.stop("immediate")
    assert_waiting(console, gtrid)
    second.start()
    said = until(console.process, "the alarm is over, overdue")
    assert f"forgot {gtrid}: every branch has answered" in said
    console.assert_calm("back")
    assert console.command("show", gtrid)[0] == ExitCode.REFUSED
    assert console.site.counts() == {"one": 1, "two": 1, "ledger": 0}

    with decided(console.site) as gtrid:
        (gid,) = [gid for gid in console.site.databases.prepared() if ":two:" in gid]
        end(console.site, "two", "rollback", gid)
    assert_otherwise(console, gtrid)
    console.site.databases.execute("two", "insert into t values (1)")
    forgotten, said = console.command("forget", gtrid, "--yes", "--reason", "row 1 written by hand")
    assert (forgotten, said.splitlines()[0]) == (ExitCode.OK, "1 forgotten")
    console.assert_calm("repaired")
    (entry,) = json.loads(console.site.command("audit", "--json").stdout)
    assert (entry["command"], entry["gtrid"], entry["outcome"]) == ("forget", gtrid, "done")
    for code, said in (console.command("audit"), console.command("show", gtrid)):
        assert code == ExitCode.OK
        assert f"{entry['who']} (row 1 written by hand): done" in " ".join(said.split())
    assert console.site.counts() == {"one": 2, "two": 2, "ledger": 0}
    evidence.hit(["coordinator.decided"])
    evidence.add(Count.KILLS, 2)


def assert_waiting(console: OperatorConsole, gtrid: str) -> None:
    """One database has committed, the other one does not answer: all four say so, and why."""
    why = "keep the decision until two answers (its process is dead and fenced)"
    console.wait_for("api/in-doubt", why)
    console.wait_for("healthz", ": 2 alarms")
    (found,) = console.list()
    states = {each["datasource"]: each["state"] for each in found["branches"]}
    assert (found["gtrid"], found["decision"]) == (gtrid, "commit")
    assert states == {"one": "not prepared", "two": "no answer"}
    page = console.page("away")
    for code, said in (console.command("list"), console.command("show", gtrid), (ExitCode.UNREACHABLE, page)):
        assert code == ExitCode.UNREACHABLE
        assert gtrid in said
        assert why in " ".join(said.split())
        assert "Connection refused" in " ".join(said.split()), "in the database's own words"
    assert "<h1>2 alarms</h1>" in page
    assert "no answer from two" in page
    metrics = console.metrics()
    assert metrics == {OVERDUE: 1.0, UNREACHABLE: 1.0, ANSWERS: 0.0, OTHERWISE: 0.0}, "nobody knows what it holds"
    code, said = console.command("scan")
    assert code == ExitCode.OVERDUE
    assert f"alarm, overdue: {gtrid} has been in doubt for longer than 1 s" in said
    assert "alarm, unreachable: datasource two has not answered" in said
    assert console.site.databases.rows("one", "select count(*) from t") == [(1,)]
    assert console.site.kept() == {"decisions": 1}


def assert_otherwise(console: OperatorConsole, gtrid: str) -> None:
    """One database has committed, the other one was made to roll back: all four say so, and what it was decided."""
    console.wait_for("healthz", ": 1 transaction ended otherwise than decided")
    page = console.page("otherwise")
    for code, said in (console.command("list"), console.command("show", gtrid)):
        assert code == ExitCode.HEURISTIC
        assert "in two: decided to commit, ended rolled back" in said
        assert "decision    commit, " in said
        assert "repair the data, then forget" in " ".join(said.split())
    for shown in (gtrid, "1 transaction ended otherwise than decided", "<b>two</b> ended rolled back", "commit, in "):
        assert shown in page
    assert console.metrics() == QUIET | {OTHERWISE: 1.0}
    assert console.command("scan") == (ExitCode.OK, "nothing to do\n"), "it is no news"
    assert console.site.databases.prepared() == []
    assert console.site.counts() == {"one": 2, "two": 1, "ledger": 0}
