"""Processes of the former version itself and of this one, on one log: TXPOOL_OLD_CHECKOUT names a checkout of it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from recovery import RecoveryManager
from recovery.scan import snapshot
from recovery.scan.modules import overdue
from tests.integration.upgrade.former import LEFT_ALONE, PASSWORD, WRITER, Former, Make, texts
from tests.support.recovery_site import connected_first
from tests.support.waiting import until

pytestmark = pytest.mark.former

_NODES = {"old": "etl-1", "new": "etl-2"}
STORES = pytest.mark.parametrize("store", ["sqlite", "server"])
VERSIONS = pytest.mark.parametrize("version", ["old", "new"])


def start(site: Former, version: str, source: str, *arguments: str, failpoints: str = "") -> subprocess.Popen[str]:
    root = os.environ["TXPOOL_OLD_CHECKOUT"] if version == "old" else ""
    return site.start(source, *arguments, root=root, failpoints=failpoints)


def configure(site: Former, version: str, user: str = "") -> None:
    """Processes of one node share a folder; on a server, each version has a node of its own."""
    node, nodes = (_NODES[version], "*") if site.store == "server" else ("etl-1", "")
    site.configure(node=node, nodes=nodes, recovery_user=user)


def write(site: Former, version: str, number: int, *names: str, failpoints: str = "") -> subprocess.Popen[str]:
    configure(site, version)
    return start(site, version, WRITER, str(number), *names, failpoints=failpoints)


def command(site: Former, version: str, *arguments: str, user: str = "") -> tuple[int, str]:
    """The exit code of `txpool-recovery`, and all that it has said."""
    configure(site, version, user)
    process = start(site, version, "", "-m", "recovery", *arguments, "--conf", "recovery.properties")
    output, errors = process.communicate(timeout=600)
    return process.returncode, output + errors


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == code, output + errors
    return output + errors


def recover(site: Former, version: str, *codes: int, user: str = "") -> str:
    code, said = command(site, version, "scan", user=user)
    assert code in codes, said
    return said


@contextmanager
def held(site: Former, version: str, number: int) -> Iterator[list[str]]:
    """The branches of a living process that is prepared, and has decided nothing."""
    before = site.databases.prepared()
    process = write(site, version, number, "one", "two", failpoints="coordinator.prepared=hang")
    try:
        while len(site.databases.prepared()) < len(before) + 2:
            assert process.poll() is None, process.communicate()
        yield sorted(set(site.databases.prepared()) - set(before))
    finally:
        process.kill()
        process.communicate()


@VERSIONS
@STORES
@pytest.mark.parametrize("user", ["", "txpool"], ids=["one user", "recovery.user"])
def test_each_recovers_both(former: Make, version: str, user: str, store: str) -> None:
    site = former(store)
    for number, each in ((21, "old"), (31, "new")):
        ended(write(site, each, number, "one", "two"))
        ended(write(site, each, number + 1, "one", "two", failpoints="coordinator.decided=kill"), -signal.SIGKILL)
        ended(write(site, each, number + 2, "one", "two", failpoints="coordinator.prepared=kill"), -signal.SIGKILL)
        ended(
            write(site, each, number + 3, "one", "two", "ledger", failpoints="marked.committed=kill"), -signal.SIGKILL
        )
        ended(write(site, each, number + 4, "one", "book", failpoints="marked.row=kill"), -signal.SIGKILL)
    site.disconnect()
    said = recover(site, version, 0, 1, user=user)
    committed = [21, 22, 24, 31, 32, 34]
    assert site.rows()["one"] == [1, 3, 7, 9, *committed], said
    assert site.rows()["two"] == [1, 3, 7, 9, *committed]
    assert site.rows()["ledger"] == [7, 24, 34]
    assert site.databases.prepared() in (LEFT_ALONE, LEFT_ALONE[:1])


@VERSIONS
@STORES
def test_each_leaves_the_living_of_the_other_alone(former: Make, version: str, store: str) -> None:
    other = "new" if version == "old" else "old"
    site = former(store)
    recover(site, version, 0, 1)
    before = site.rows()
    with held(site, other, 41) as branches:
        assert len(branches) == 2
        recover(site, version, 0, 1)
        assert set(branches) <= set(site.databases.prepared())
        ended(write(site, version, 42, "one", "two"))
        ended(write(site, other, 43, "one", "two"))
    site.disconnect()
    recover(site, version, 0, 1)
    assert not set(branches) & set(site.databases.prepared())
    assert site.rows()["one"] == [*before["one"], 42, 43]


def stop_process(site: Former, version: str, number: int, point: str, *names: str) -> subprocess.Popen[str]:
    """A living process with a timeout of 2 s that hangs at a point, prepared."""
    before = site.databases.prepared()
    configure(site, version)
    text = (site.folder / "txpool.properties").read_text().strip()
    site.write("txpool", f"{text}\ntransaction.timeout = 2")
    process = start(site, version, connected_first(WRITER), str(number), *names, failpoints=f"{point}=hang")
    prepared = len({"one", "two"}.intersection(names))
    while len(site.databases.prepared()) < len(before) + prepared:
        assert process.poll() is None, process.communicate()
    return process


@STORES
@pytest.mark.parametrize("version", ["old", "new"])
def test_only_a_process_that_has_noted_its_timeout_is_ended_while_it_lives(
    former: Make, store: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This version recovers, and may end what is overdue: the former version's process has noted none."""
    site = former(store)
    recover(site, "new", 0, 1)
    before = set(site.databases.prepared())
    process = stop_process(site, version, 51, "coordinator.prepared", "one", "two")
    try:
        branches = set(site.databases.prepared()) - before
        for module in (overdue, snapshot):
            monkeypatch.setattr(module, "MARGIN_SECONDS", 0.0)
        configure(site, "new")
        site.write("recovery", f"{site.conf.read_text().strip()}\nrecovery.overdue-rollback = 1ms")
        with closing(RecoveryManager(site.conf)) as manager:
            if version == "new":
                until(lambda: manager.scan() and not branches & set(site.databases.prepared()))
            else:
                ages = "select extract(epoch from min(now() - prepared)) from pg_prepared_xacts where gid = any(%s)"
                with site.session("one") as session:
                    until(lambda: (session.execute(ages, [[*branches]]).fetchone() or (0,))[0] > 3)
                report = manager.scan()
                assert branches <= set(site.databases.prepared())
                assert not [alarm for alarm in report.alarms if alarm.kind == "overdue"]
    finally:
        process.kill()
        process.communicate()


@STORES
def test_the_former_version_leaves_a_crash_beside_a_last_resource_to_this_one(former: Make, store: str) -> None:
    site = former(store)
    recover(site, "new", 0, 1)
    before = set(site.databases.prepared())
    site.write("till", "driver = sqlite3\nmode = last-resource\nurl = sqlite:///till.db")
    with closing(sqlite3.connect(site.folder / "till.db")) as till:
        till.execute("create table t (id int)")
    ended(write(site, "new", 61, "one", "till", failpoints="log.record=kill"), -signal.SIGKILL)
    site.disconnect()
    (branch,) = set(site.databases.prepared()) - before
    gtrid = ":".join(branch.split(":")[:4])
    for refused in (("scan",), ("list",), ("rollback", gtrid, "--yes")):
        code, said = command(site, "old", *refused)
        assert code == 4, said
        assert "a later txpool's: use that one" in said
        assert branch in site.databases.prepared()
    said = recover(site, "new", 7)
    assert "its last resource till may have committed before that" in said
    assert branch not in site.databases.prepared()
    recover(site, "new", 0, 1)
    assert command(site, "old", "scan")[0] in (0, 1), "nothing of the note is left"


@VERSIONS
@STORES
def test_each_reads_what_the_other_keeps_for_people(former: Make, version: str, store: str) -> None:
    other = "new" if version == "old" else "old"
    site = former(store)
    recover(site, other, 0, 1, 7)
    assert command(site, other, "suspend", "--reason", "the other")[0] == 0
    for name, *more in (("list",), ("list", "--expired"), ("audit",)):
        code, said = command(site, version, name, *more)
        assert code in (0, 1, 7), said
        assert "Traceback" not in said
    assert "(the other)" in recover(site, version, 6)
    assert command(site, version, "resume")[0] == 0
    before = kept_since(site)
    recover(site, version, 0, 1, 7)
    if store == "sqlite":  # where both are of one node, its expiry goes on from what the other's has kept
        assert before
        assert before.items() <= kept_since(site).items()


def kept_since(site: Former) -> dict[str, float]:
    """Since when what is of no use is, as recovery has kept it."""
    (found,) = texts(site.kept("memos where kind = 'expiry' and name = 'etl-1'", "text"))
    return {entry: since for entry, since in found.items() if entry != "format"}


#: The same as `WRITER`, but for two, which it makes in code.
_WRITER_IN_CODE = WRITER.replace("configure(", "from txpool.datasource import DataSource\n\n    configure(").replace(
    "for name in sys.argv[2:]:",
    """DataSource("two", driver="psycopg", url=sys.argv[2], password=sys.argv[3]).connect().cursor().execute(
            f"insert into t values ({sys.argv[1]})")
        for name in sys.argv[4:]:""",
)


def without_two(site: Former, version: str) -> tuple[int, str]:
    """A scan of that version, whose files do not name two; only the new one's file allows its login."""
    configure(site, version)
    text = site.conf.read_text().replace("two.properties, ", "")
    if version == "new":
        text += f"recovery.noted = {site.url('two').replace('@', f':${{env:{PASSWORD}}}@')}\n"
    site.conf.write_text(text)
    (site.folder / "two.properties").unlink()
    process = start(site, version, "", "-m", "recovery", "scan", "--conf", str(site.conf))
    output, errors = process.communicate(timeout=600)
    return process.returncode, output + errors


@STORES
@pytest.mark.parametrize("writes", ["old", "new"])
def test_a_datasource_made_in_code_is_named_by_both_and_reached_by_this_version_alone(
    former: Make, writes: str, store: str
) -> None:
    """The former version leaves alone what it does not know: the login beside a note."""
    site = former(store)
    recover(site, "new", 0, 1)
    configure(site, writes)
    arguments = ("41", site.url("two"), f"${{env:{PASSWORD}}}", "one")
    ended(
        start(site, writes, _WRITER_IN_CODE, *arguments, failpoints="coordinator.decided=kill"),
        -signal.SIGKILL,
    )
    site.disconnect()
    code, said = without_two(site, "old")
    assert code == 11, said
    assert "so no file can be opened for it" in said
    assert site.rows()["one"][-1] == 41, said
    assert 41 not in site.rows()["two"], said
    code, said = without_two(site, "new")
    assert (41 in site.rows()["two"]) is (writes == "new"), said
    if writes == "old":
        assert code == 11, said
        assert "noted no login that recovery could follow" in said
    assert recover(site, "old", 0, 1)
    assert site.rows()["two"][-1] == 41
