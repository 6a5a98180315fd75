"""Work with a transaction_id, recorded in MariaDB and MySQL."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase
from txpool import AlreadyDone, DataSource, OperationalError, ProgrammingError
from txpool.errors import NotSupportedError
from txpool.idempotency.once import IdempotentWork

_RECORDS = "select transaction_id, target, gtrid, mode, plan from txpool_spark_writes order by gtrid"


def run(source: DataSource, number: int, name: str = "invoice-42", **options: Any) -> str:
    with txpool.transaction(transaction_id=name, record_in=source, **options) as tx:
        source.connect().cursor().execute("insert into work values (%s, 0)", [number])
    return tx.gtrid


def test_a_rerun_is_told(managed: BranchDatabase) -> None:
    source = managed.datasource()
    with pytest.raises(LookupError), txpool.transaction(transaction_id="invoice-42", record_in=source):
        source.connect().cursor().execute("insert into work values (1, 0)")
        raise LookupError
    gtrid = run(source, 2)
    with pytest.raises(
        AlreadyDone, match=f"{gtrid} has committed it .* its record stands in txpool_spark_writes"
    ) as told:
        run(source, 3)
    assert told.value.done_at is not None
    assert abs(told.value.done_at - datetime.now(UTC)) < timedelta(minutes=1)
    # No collation takes one id for another.
    for number, name in enumerate(("INVOICE-42", "invoice-42 ", "ínvoice-42"), 4):
        run(source, number, name)
    assert managed.rows() == [2, 4, 5, 6]
    found = managed.server.execute(_RECORDS, database="one")
    assert found[0] == (b"invoice-42", b"transaction", gtrid, "block", "-")
    assert len(found) == 4


@pytest.mark.parametrize("mode", ["xa", "cmr", "last-resource", "local"])
def test_every_way_to_take_part(managed: BranchDatabase, mode: str) -> None:
    source = managed.datasource(mode=mode)
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    for number in (1, 2):
        with pytest.raises(AlreadyDone) if number == 2 else nullcontext():
            run(source, number)
    assert managed.rows() == [1]


def test_an_old_snapshot_sees_the_record(managed: BranchDatabase) -> None:
    """With REPEATABLE READ a plain SELECT would not find the row that the INSERT has met."""
    source = managed.datasource()
    run(source, 1, "before")
    with txpool.transaction():
        source.connect().cursor().execute("select * from work")
        thread = threading.Thread(target=run, args=(source, 2))
        thread.start()
        thread.join()
        with pytest.raises(AlreadyDone), txpool.transaction(transaction_id="invoice-42", record_in=source):
            pass
    assert managed.rows() == [1, 2]


@pytest.mark.costly
def test_of_two_at_once_one_waits(managed: BranchDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txpool.idempotency.once._LOCK_TIMEOUTS_MS", (1_000, 1_000))
    source = managed.datasource()
    run(source, 1, "before")
    with managed.server.connect("one", autocommit=False) as other:
        other.cursor().execute(
            "insert into txpool_spark_writes (transaction_id, target, gtrid, mode, plan) "
            "values ('invoice-42', 'transaction', 'txp1:x', 'block', '-')"
        )
        with pytest.raises(OperationalError, match="another run of transaction_id='invoice-42' is at work now"):
            run(source, 2)
        # What the transaction did before it asked is not lost by that.
        with txpool.transaction():
            source.connect().cursor().execute("insert into work values (3, 0)")
            with pytest.raises(OperationalError), txpool.transaction(transaction_id="invoice-42", record_in=source):
                pass
            cursor = source.connect().cursor()
            cursor.execute("select @@session.innodb_lock_wait_timeout, @@global.innodb_lock_wait_timeout")
            ((now, always),) = cursor.fetchall()
            assert now == always
        other.rollback()
    run(source, 2)
    assert managed.rows() == [1, 2, 3]


def test_a_stream_has_one_record(managed: BranchDatabase) -> None:
    source = managed.datasource()

    def claim(batch: int) -> Any:
        with txpool.transaction() as tx:
            return IdempotentWork(source, "stream", "foreachBatch", tx.gtrid, "foreachBatch", "-", batch).claim_within(
                tx
            )

    assert claim(0) is None
    assert claim(1) is None
    earlier = claim(1)
    assert (earlier.batch, earlier.partitions, earlier.rows) == (1, None, None)
    assert managed.server.execute("select batch from txpool_spark_writes", database="one") == [(1,)]


def test_a_table_that_is_not_ours_is_refused(managed: BranchDatabase) -> None:
    """An account that may only create tables could make one whose rows stay after a rollback."""
    source = managed.datasource()
    for made, message in (
        ("create table txpool_spark_writes (a int) engine = myisam", "of the engine MyISAM"),
        ("create view txpool_spark_writes as select 1", "a view"),
    ):
        managed.server.execute(made, database="one")
        with pytest.raises(OperationalError, match=f"txpool_spark_writes is {message}, and only a table of InnoDB"):
            run(source, 1)
        kind = "view" if "view" in made else "table"
        managed.server.execute(f"drop {kind} txpool_spark_writes", database="one")
    managed.server.execute("create table txpool_spark_writes (a int) comment 'txpool format 9'", database="one")
    with pytest.raises(NotSupportedError, match="has txpool format 9"):
        run(source, 1)
    assert managed.rows() == []


def test_the_url_must_name_a_database(managed: BranchDatabase) -> None:
    url = managed.server.url("one").removesuffix("one")
    source = managed.datasource(url=url)
    with pytest.raises(ProgrammingError, match="its url names no database"):
        run(source, 1)


def test_what_may_not_be_created_is_told(managed: BranchDatabase) -> None:
    server = managed.server
    server.execute("create user 'few'@'%' identified by 'few'", "grant select, insert on one.* to 'few'@'%'")
    source = managed.datasource(url=server.url("one").replace("txpool@", "few@"), password="few", mode="local")
    with pytest.raises(Exception, match="denied") as told:
        run(source, 1)
    assert any("let this account create tables" in note for note in told.value.__notes__)
    assert managed.rows() == []
