"""Hosts that share a decision log: recovery on one of them ends what a coordinator on another has left."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import WRITER, Site, end, prepare

BOTH = ("one", "two")
MARKED = ("one", "two", "ledger")
#: Where a transaction is killed, and whether it is decided there.
POINTS = [
    (BOTH, "coordinator.prepared", False),
    (BOTH, "coordinator.decided", True),
    (MARKED, "coordinator.prepared", False),
    (MARKED, "marked.committed", True),
]

#: Comes to a point of one transaction, says so, and stays there.
STAYS = """
    import signal, sys
    from txpool import failpoints
    from txpool.datasource import connect
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction

    def stay():
        print(tx.gtrid, flush=True)
        signal.pause()

    configure("txpool.properties")
    failpoints.arm(sys.argv[1], stay)
    with transaction() as tx:
        for name in sys.argv[2:]:
            connect(f"{name}.properties").cursor().execute("insert into t values (1)")
"""

Stays = Callable[..., "tuple[subprocess.Popen[str], str]"]


@pytest.fixture
def site(tmp_path: Path, databases: Any) -> Site:
    """Its transactions and its `recovery` are node etl-1's; `elsewhere` is another host, named etl-2."""
    site = Site(tmp_path, databases, store="sql")
    site.host("elsewhere", node="etl-2", nodes="*", period="100ms")
    return site


@pytest.fixture
def stays(site: Site) -> Iterator[Stays]:
    """`stays(point, *names, node=)`: a coordinator that is at that point of a transaction, and its gtrid."""
    started: list[subprocess.Popen[str]] = []

    def start(point: str, *names: str, node: str = "etl-1") -> tuple[subprocess.Popen[str], str]:
        process = site.process(STAYS, point, *names, env={"TXPOOL_NODE_NAME": node})
        started.append(process)
        gtrid = process.stdout.readline().strip()
        assert gtrid, process.stderr.read()
        return process, gtrid

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def daemon(site: Site) -> Iterator[subprocess.Popen[str]]:
    """The recovery daemon of the other host."""
    process = site.process(
        "from recovery.cli import main; import sys; sys.argv[1:] = ['run', '--conf', 'elsewhere.properties']; main()"
    )
    deadline = threading.Timer(60, process.kill)
    deadline.start()
    yield process
    deadline.cancel()
    process.kill()
    process.communicate()


def heard(process: subprocess.Popen[str], what: str, times: int = 1) -> None:
    """Return once a process has said so, so many times."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        times -= what in line
        if not times:
            return
    raise AssertionError(f"it has ended without saying {what!r}:\n{''.join(lines)}")


@pytest.mark.costly
@pytest.mark.parametrize(("names", "point", "committed"), POINTS)
def test_the_daemon_of_another_host_ends_what_a_killed_coordinator_left(
    site: Site, stays: Stays, daemon: Any, names: tuple[str, ...], point: str, committed: bool
) -> None:
    alive, other = stays("coordinator.prepared", "one", "two", node="etl-2")
    process, gtrid = stays(point, *names)
    process.send_signal(signal.SIGKILL)
    if committed or "ledger" in names:
        heard(daemon, f"forgot {gtrid}")
    else:
        heard(daemon, f"rolled back {gtrid}", 2)
    assert site.counts() == {name: int(committed and name in names) for name in MARKED}
    assert [gid for gid in site.databases.prepared() if gtrid in gid] == []
    assert site.marks() == []
    # What a living process of the daemon's own node has prepared stays until that is gone, too.
    assert sum(other in gid for gid in site.databases.prepared()) == 2
    alive.send_signal(signal.SIGKILL)
    heard(daemon, f"rolled back {other}", 2)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait() == ExitCode.OK
    assert site.databases.prepared() == []
    assert site.kept() == {}


@pytest.mark.costly
def test_it_leaves_alone_what_it_was_not_given(site: Site) -> None:
    expected = dict.fromkeys(MARKED, 0)
    for names, point, commits in POINTS:
        site.killed(WRITER, *names, failpoints=f"{point}=kill")
        expected = {name: count + (commits and name in names) for name, count in expected.items()}
    before = site.counts(), site.databases.prepared(), site.marks(), site.kept()
    for nodes in ("", "etl-3", "etl-2, etl-10"):
        site.host("stranger", node="etl-2", nodes=nodes)
        scanned = site.command("scan", conf="stranger")
        assert scanned.returncode == ExitCode.OK, scanned.stdout
        assert (site.counts(), site.databases.prepared(), site.marks(), site.kept()) == before
    assert site.databases.rows("one", "select sum(fenced) from txpool_incarnations") == [(0,)]
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts() == expected


@pytest.mark.costly
def test_what_the_log_does_not_know_is_an_alarm_where_every_node_is_ours(site: Site) -> None:
    """Neither a node that has never been in it, nor a lost name of a known one; unless others have prepared it."""
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    site.databases.execute("one", "insert into txpool_incarnations values ('elsewhere000', 'etl-3', 1)")
    for gid in ("txp1:etl-9:strange00000:1:0:one:L", "txp1:etl-3:strange00000:1:0:one:L"):
        prepare(site, "one", gid)
    scanned = site.command("scan", "--json", conf="elsewhere")
    assert scanned.returncode == ExitCode.IN_DOUBT
    report = json.loads(scanned.stdout)
    left = {each["gtrid"]: each["alarm"] for each in report["left_alone"]}
    assert left == {"txp1:etl-9:strange00000:1": True, "txp1:etl-3:strange00000:1": True}
    assert [(each["kind"], each["subject"]) for each in report["alarms"]] == [
        ("unknown", "node etl-3"),
        ("unknown", "node etl-9"),
    ]
    listed = site.command("list", "--json", conf="elsewhere")
    assert listed.returncode == ExitCode.IN_DOUBT
    assert {each["gtrid"]: each["attention"] for each in json.loads(listed.stdout)} == left
    assert len(site.databases.prepared()) == 2
    for gtrid in left:
        assert site.command("rollback", gtrid, "--yes", conf="elsewhere").returncode == ExitCode.OK
    assert site.databases.prepared() == []
    assert site.command("scan", conf="elsewhere").returncode == ExitCode.OK


@pytest.mark.costly
def test_the_list_of_one_node(site: Site, stays: Stays) -> None:
    for node in ("etl-1", "etl-2"):
        stays("coordinator.prepared", *BOTH, node=node)[0].kill()
    for node, others in (("etl-1", 1), ("etl-2", 1), ("etl-3", 0), ("", 2)):
        option = ["--node", node] if node else []
        listed = site.command("list", "--json", *option, conf="elsewhere")
        found = json.loads(listed.stdout)
        assert len(found) == others
        assert {each["node"] for each in found} <= ({node} if node else {"etl-1", "etl-2"})
        assert listed.returncode in ((ExitCode.OK, ExitCode.IN_DOUBT) if found else (ExitCode.OK,))
    site.command("scan", conf="elsewhere")


def test_what_others_have_prepared_under_a_name_that_the_log_does_not_know_is_no_alarm(site: Site) -> None:
    password = site.databases.server.password
    site.databases.execute("one", f"create role mallory login password '{password}'")
    dsn = psycopg.conninfo.make_conninfo(site.databases.dsn("one"), user="mallory", password=password)
    with psycopg.connect(dsn) as connection:
        connection.execute("prepare transaction 'txp1:etl-9:strange00000:1:0:one:L'")
    try:
        scanned = site.command("scan", "--json", conf="elsewhere")
        assert json.loads(scanned.stdout)["alarms"] == []
        assert scanned.returncode == ExitCode.OK
        refused = site.command("rollback", "txp1:etl-9:strange00000:1", "--yes", conf="elsewhere")
        assert refused.returncode == ExitCode.REFUSED
        assert len(site.databases.prepared()) == 1
    finally:
        end(site, "one", "rollback", "txp1:etl-9:strange00000:1:0:one:L")
        site.databases.execute("one", "drop role mallory")


@pytest.mark.costly
@pytest.mark.parametrize(("names", "point", "committed"), POINTS)
def test_by_hand_once_the_log_was_adopted_and_knows_no_node(
    site: Site, names: tuple[str, ...], point: str, committed: bool
) -> None:
    site.killed(WRITER, *names, failpoints=f"{point}=kill")
    assert site.command("init", "--adopt", conf="elsewhere").returncode == ExitCode.OK
    before = site.databases.prepared()
    for command in ("scan", "list"):
        assert site.command(command, conf="elsewhere").returncode == ExitCode.IN_DOUBT
    assert site.databases.prepared() == before
    (listed,) = json.loads(site.command("list", "--json", conf="elsewhere").stdout)
    assert listed["decision"] == ("commit" if committed else "undecided")
    right, wrong = ("commit", "rollback") if committed else ("rollback", "commit")
    refused = site.command(wrong, listed["gtrid"], "--yes", conf="elsewhere")
    assert refused.returncode == ExitCode.REFUSED, refused.stdout
    assert site.databases.prepared() == before
    done = site.command(right, listed["gtrid"], "--yes", conf="elsewhere")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert site.counts() == {name: int(committed and name in names) for name in MARKED}
    assert site.databases.prepared() == []
    assert site.marks() == []
    assert site.kept() == ({} if committed or "ledger" in names else {"decisions": 1}), "an abort record expires"
    assert site.command("list", conf="elsewhere").returncode == ExitCode.OK
    assert site.command("scan", conf="elsewhere").returncode == ExitCode.OK


@pytest.mark.costly
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_by_hand_from_another_host(site: Site, verb: str) -> None:
    site.killed(WRITER, *BOTH, failpoints=f"coordinator.{'decided' if verb == 'commit' else 'prepared'}=kill")
    site.host("stranger", node="etl-2")
    (listed,) = json.loads(site.command("list", "--json", conf="stranger").stdout)
    assert "another node" in listed["next"]
    refused = site.command(verb, listed["gtrid"], "--yes", conf="stranger")
    assert refused.returncode == ExitCode.REFUSED
    assert "belongs to node etl-1, and this recovers etl-2" in refused.stderr
    assert len(site.databases.prepared()) == 2
    shown = site.command("show", listed["gtrid"], conf="elsewhere")
    assert shown.returncode == ExitCode.IN_DOUBT
    assert "fence its dead process" in shown.stdout
    done = site.command(verb, listed["gtrid"], "--yes", conf="elsewhere")
    assert done.returncode == ExitCode.OK, done.stderr
    assert site.counts() == {"one": int(verb == "commit"), "two": int(verb == "commit"), "ledger": 0}
    assert site.databases.prepared() == []


@pytest.mark.costly
def test_two_hosts_recover_at_once_and_do_not_disturb_each_other(site: Site, stays: Stays) -> None:
    expected = dict.fromkeys(MARKED, 0)
    for names, point, commits in POINTS * 2:
        # The ledger's local transaction holds its lock for as long as its process lives.
        process, _ = stays(point, *names)
        process.send_signal(signal.SIGKILL)
        process.wait()
        expected = {name: count + (commits and name in names) for name, count in expected.items()}
    site.host("third", node="etl-3", nodes="etl-1, etl-2")
    with ThreadPoolExecutor() as hosts:
        scans = list(hosts.map(lambda conf: site.command("scan", "--json", conf=conf), ["elsewhere", "third"] * 2))
    assert [json.loads(scan.stdout)["heuristics"] for scan in scans] == [[]] * 4
    assert site.command("scan", conf="third").returncode == ExitCode.OK
    assert site.counts() == expected
    assert site.databases.prepared() == []
    assert (site.marks(), site.kept()) == ([], {})
