"""A marked database that is a Galera cluster: another node's commits, tombstones and recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import TYPE_CHECKING

import pymysql
import pytest

import txpool
from recovery import RecoveryManager
from tests.integration.conformance.test_cases import APPLY
from tests.integration.resources.marked.ledger import new_gtrid, others
from tests.support.galera import PROVIDER, GaleraNode
from tests.support.mysql import mariadb_program
from tests.support.repository import ROOT
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.datasource import DataSource
from txpool.log import open_log
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.driver.making import make_driver
from txpool.resources.marked.branch import MarkedTransaction
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import Xids
from txpool.resources.mysql.branches.xa import DEADLOCK

if TYPE_CHECKING:
    from tests.conftest import Databases, Require

    Nodes = tuple[GaleraNode, GaleraNode]

pytestmark = pytest.mark.slow

_KILLED = """
    import txpool

    txpool.configure("txpool.properties")
    with txpool.transaction():
        txpool.connect("shop.properties").cursor().execute("insert into work values (2, 0)")
        txpool.connect("beside.properties").cursor().execute("insert into beside values (2)")
"""


@pytest.fixture(scope="module")
def nodes(require: Require) -> Iterator[Nodes]:
    program = mariadb_program()
    require(program and PROVIDER.exists(), "Galera: apt-get install mariadb-server galera-4")
    assert program is not None
    with GaleraNode(program) as one, GaleraNode(program, joins=one) as two:
        yield one, two


@pytest.fixture
def cluster(nodes: Nodes, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The nodes with a row to contend for, and the files of the cluster by node one and of a database beside it."""
    one, two = nodes
    one.execute(
        "drop table if exists xids",
        "create or replace table work (id int primary key, v int) engine = innodb",
        "insert into work values (1, 0)",
        database="one",
    )
    databases.execute("one", "create table beside (id int)")
    monkeypatch.chdir(tmp_path)
    Path("txpool.properties").write_text("node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n")
    Path("beside.properties").write_text(
        f"name = beside\ndriver = psycopg\nmode = xa\nurl = {databases.url('one')}\npassword = ${{env:PG}}\n"
    )
    monkeypatch.setenv("PG", databases.server.password)
    monkeypatch.setenv("GALERA", one.password)
    lead_to(one)
    make_xids(one).create()
    wait_for(two, "select v from work where id = 1", [(0,)])
    return nodes


def lead_to(node: GaleraNode) -> None:
    Path("shop.properties").write_text(
        f"name = shop\ndriver = pymysql\nmode = cmr\nurl = {node.url('one')}\npassword = ${{env:GALERA}}\n"
    )


def settings_of(node: GaleraNode) -> DataSourceSettings:
    password = Secret(node.password)
    return DataSourceSettings.load(name="shop", driver="pymysql", mode="cmr", url=node.url("one"), password=password)


def make_xids(node: GaleraNode) -> Xids:
    return Xids("shop", make_driver(settings_of(node)))


def wait_for(node: GaleraNode, query: str, rows: list[tuple[object, ...]]) -> None:
    """A node applies what another has committed a moment later."""
    until = time.monotonic() + 600
    while (found := node.execute(query, database="one")) != rows:
        assert time.monotonic() < until, found
        time.sleep(0.02)


@pytest.mark.costly
def test_the_kit_passes(cluster: Nodes) -> None:
    found = run_cases(settings_of(cluster[0]))
    failed = {each.case.name: each.reason for each in found.results if each.verdict is Verdict.FAILED}
    assert (found.trouble, found.left, failed) == ("", (), {})
    passed = {each.case.name for each in found.results if each.verdict is Verdict.PASSED}
    assert passed == APPLY["cmr"] - {"killed-server"}


def test_its_nodes_are_one_database_on_two_servers(cluster: Nodes) -> None:
    raws = [make_driver(settings_of(node)).connect() for node in cluster]
    for raw in raws:
        raw.break_off()
    assert len({raw.identity for raw in raws}) == 1
    assert len({raw.node for raw in raws}) == 2


def test_what_another_node_commits_rolls_back_both_databases(cluster: Nodes, databases: Databases) -> None:
    """At whatever moment it comes, it is known that the server has rolled the transaction back."""
    one, two = cluster
    ended: list[tuple[int, bool, txpool.Status]] = []

    def commit_elsewhere(number: int) -> None:
        with suppress(pymysql.OperationalError):  # it may be the one that is refused
            two.execute(f"update work set v = {-number} where id = 1", database="one")

    txpool.configure("txpool.properties")
    with DataSource.from_properties("shop.properties") as shop, DataSource.from_properties("beside.properties") as pg:
        for number in range(2, 42):
            alone, before_commit = number % 2 == 0, number < 8
            elsewhere = Thread(target=commit_elsewhere, args=[number])
            with suppress(txpool.TransactionRolledBack), txpool.transaction() as transaction:
                cursor = shop.connect().cursor()
                try:
                    cursor.execute("insert into work values (%s, 0)", (number,))
                    cursor.execute("update work set v = %s where id = 1", (number,))
                except pymysql.OperationalError as error:
                    if error.args[0] != DEADLOCK:  # by the commit of the round before, which comes only now
                        raise
                else:
                    if not alone:
                        pg.connect().cursor().execute("insert into beside values (%s)", (number,))
                    elsewhere.start()
                    if before_commit:
                        elsewhere.join()
                        wait_for(one, "select v from work where id = 1", [(-number,)])
            if elsewhere.ident is not None:
                elsewhere.join()
            else:
                assert transaction.status is txpool.Status.ROLLED_BACK
            ended.append((number, alone, transaction.status))
    assert {status for *_, status in ended} == {txpool.Status.COMMITTED, txpool.Status.ROLLED_BACK}
    assert {status for number, _, status in ended if number < 8} == {txpool.Status.ROLLED_BACK}
    committed = [(number, alone) for number, alone, status in ended if status is txpool.Status.COMMITTED]
    assert one.execute("select id from work where id > 1 order by id", database="one") == [(n,) for n, _ in committed]
    beside = databases.rows("one", "select id from beside order by id")
    assert beside == [(number,) for number, alone in committed if not alone]
    assert databases.prepared() == []


def test_another_nodes_tombstone_wins_over_a_row_in_flight(cluster: Nodes) -> None:
    one, two = cluster
    driver, xids, gtrid = make_driver(settings_of(one)), make_xids(one), new_gtrid()
    with closing(driver.connect()) as raw:
        branch = MarkedTransaction("shop", driver, raw, xids=xids, cleanup=CleanupQueue(xids))
        driver.begin(raw)
        driver.execute(raw, "insert into work values (2, 0)")
        branch.mark(gtrid, others(gtrid))
        assert not make_xids(two).tombstone(gtrid).committed
        wait_for(one, f"select kind from xids where xid = '{gtrid}'", [("abort",)])
        with pytest.raises(Refused):
            branch.record(gtrid, others(gtrid))
        assert branch.rollback() is BranchOutcome.ROLLED_BACK
    for node in cluster:
        assert node.execute("select id from work", database="one") == [(1,)]


def test_another_nodes_tombstone_meets_a_row_that_it_has_not_applied(cluster: Nodes) -> None:
    one, two = cluster
    driver, xids, patient = make_driver(settings_of(one)), make_xids(one), make_xids(two)
    answers: list[bool | None] = []
    with closing(driver.connect()) as raw:
        for number in range(2, 32):
            gtrid = new_gtrid()
            branch = MarkedTransaction("shop", driver, raw, xids=xids, cleanup=CleanupQueue(xids))
            driver.begin(raw)
            driver.execute(raw, f"insert into work values ({number}, 0)")
            branch.mark(gtrid, others(gtrid))
            branch.record(gtrid, others(gtrid))
            try:
                answers.append(patient.tombstone(gtrid).committed)
            except txpool.OperationalError:
                answers.append(None)  # undecided: recovery asks again
    assert False not in answers
    assert one.execute("select count(*) from work", database="one") == [(31,)]


@pytest.mark.parametrize("point", ["coordinator.marked", "coordinator.decided"])
def test_recovery_by_another_node_ends_what_a_killed_process_has_left(
    cluster: Nodes, databases: Databases, point: str
) -> None:
    _, two = cluster
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": f"{point}=kill"}
    killed = subprocess.run([sys.executable, "-c", dedent(_KILLED)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    lead_to(two)
    log = open_log("sqlite:///txlog", node="etl-1")
    sources = [DataSource.from_properties(f"{name}.properties") for name in ("shop", "beside")]
    with closing(log), closing(sources[0]), closing(sources[1]):
        for _ in range(20):
            report = RecoveryManager(log=log, datasources=sources, backoff=0).scan()
            if not report.errors:  # a tombstone that the cluster has refused is put again
                break
        assert not report.errors
    rows = [(2,)] if point == "coordinator.decided" else []
    assert databases.rows("one", "select id from beside") == rows
    assert databases.prepared() == []
    for node in cluster:
        wait_for(node, "select id from work where id > 1", rows)
        wait_for(node, "select count(*) from xids where kind = 'commit'", [(0,)])
