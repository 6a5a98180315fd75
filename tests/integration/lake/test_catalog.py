"""Iceberg tables change when the transaction commits, all of them or none; read also by others than txpool."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import txpool
import txpool.lake
from tests.integration.lake.conftest import IN_POSTGRESQL, IN_SQLITE, SCHEMA, Lake, rows
from txpool.errors import (
    ConfigurationError,
    Error,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    TransactionRolledBack,
)
from txpool.lake.warehouse import Warehouse


def pointers(lake: Lake) -> dict[str, str]:
    schema = "txpool_spark." if lake.place.kind == "postgresql" else ""
    return dict(lake.place.sql("orders", f"select table_name, metadata_location from {schema}iceberg_tables"))


def test_changes_of_several_tables_are_published_together(lake: Lake) -> None:
    lake.create("orders", "lines")
    before = pointers(lake)
    with txpool.transaction():
        lake.append("orders", 1, 2)
        lake.append("lines", 3)
        lake.append("orders", 4)
        assert set(lake.catalog.load_table("db.orders").scan().to_arrow()["id"].to_pylist()) == {1, 2, 4}
        assert pointers(lake) == before
    for name, ids in {"orders": {1, 2, 4}, "lines": {3}}.items():
        found = StaticTable.from_metadata(pointers(lake)[name])
        assert set(found.scan().to_arrow()["id"].to_pylist()) == ids
        assert [entry.metadata_file for entry in found.metadata.metadata_log] == [before[name]]
    assert lake.rows() == 0
    assert not [each for each in lake.files() if each.endswith(".journal")]


@IN_SQLITE
def test_a_change_of_a_table_that_was_loaded_reads_it_no_second_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create("orders")
    read, real = [], FromInputFile.table_metadata
    monkeypatch.setattr(FromInputFile, "table_metadata", lambda file: read.append(file.location) or real(file))
    with txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(rows(1))
        table.append(rows(2))
        lake.append("orders", 3)
    assert len(read) == 1
    assert set(lake.ids("orders")) == {1, 2, 3}


@IN_SQLITE
def test_a_table_that_was_loaded_twice_is_one_table(lake: Lake) -> None:
    """What is done by one of them is seen by the other: an upsert would insert the same row again."""
    lake.create("orders")
    with txpool.transaction():
        one, other = (lake.catalog.load_table("db.orders") for _ in range(2))
        one.append(rows(1))
        assert other.scan().to_arrow()["id"].to_pylist() == [1]
        other.upsert(rows(1, 2), join_cols=["id"])
        for number, each in enumerate((one, other)):
            with each.update_schema() as schema:
                schema.add_column(f"more{number}", LongType())
        one.delete("id = 2")
        other.delete("id = 1")
        with one.transaction() as changes:
            changes.append(rows(3))
            other.append(rows(4))
        assert sorted(one.scan().to_arrow()["id"].to_pylist()) == [3, 4]
        assert one.metadata is other.metadata
    assert lake.ids("orders") == [3, 4]


@IN_POSTGRESQL
def test_tables_change_with_another_database(lake: Lake) -> None:
    lake.create("orders")
    for fails in (True, False):
        with suppress(ZeroDivisionError), txpool.transaction():
            lake.append("orders", 1)
            with lake.place.ledger.connect() as connection:
                connection.cursor().execute("insert into applied values (1, 'a')")
            if fails:
                1 / 0
        assert lake.ids("orders") == [1] * (not fails)
        assert lake.place.applied() == ["a"] * (not fails)
    assert lake.rows() == 0


@IN_SQLITE
def test_what_is_rolled_back_leaves_no_file(lake: Lake) -> None:
    lake.create("orders")
    before, files = pointers(lake), lake.files()
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        lake.append("orders", 1)
        lake.catalog.create_table("db.more", SCHEMA).append(rows(1))
        assert lake.files() != files
        1 / 0
    assert (pointers(lake), lake.files(), lake.rows()) == (before, files, 0)


def test_every_kind_of_change(lake: Lake) -> None:
    lake.create("orders")
    with txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(rows(1, 2, 3))
        table.delete("id = 2")
        table.upsert(pa.table({"id": [3, 4], "name": ["three", "four"]}, schema=SCHEMA), join_cols=["id"])
        with table.update_schema() as schema:
            schema.add_column("amount", LongType())
        with table.update_spec() as spec:
            spec.add_identity("name")
        table.append(pa.table({"id": [5], "name": ["five"], "amount": [55]}))
        table.overwrite(pa.table({"id": [6], "name": ["six"], "amount": [66]}), "id = 1")
    assert lake.ids("orders") == [3, 4, 5, 6]
    with txpool.transaction():
        lake.catalog.load_table("db.orders").overwrite(pa.table({"id": [7], "name": ["seven"], "amount": [77]}))
    assert lake.ids("orders") == [7]


@IN_SQLITE
def test_partitions_and_names(lake: Lake) -> None:
    lake.create()
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="name"))
    with txpool.transaction():
        lake.catalog.create_table("db.parts", schema, partition_spec=spec).append(rows(1, 2))
    with txpool.transaction():
        lake.catalog.load_table("db.parts").dynamic_partition_overwrite(rows(2, 3))
        with pytest.raises(NotSupportedError, match="in another transaction"):
            lake.catalog.rename_table("db.parts", "db.renamed")
    with txpool.transaction():
        lake.catalog.rename_table("db.parts", "db.renamed")
    assert lake.ids("renamed") == [1, 2, 3]
    with txpool.transaction():
        lake.catalog.drop_table("db.renamed")
    with txpool.transaction():
        assert lake.catalog.list_tables("db") == []


def evolved(table: Any) -> None:
    with table.update_spec() as spec:
        spec.add_identity("nope")


def relocated(table: Any) -> None:
    with table.transaction() as changes:
        changes.set_properties({"write.metadata.path": f"{table.location()}/{'m' * 1000}"})


def interleaved(lake: Any) -> None:
    """Two changes of the schema at once."""
    one, other = (lake.load_table("db.orders") for _ in range(2))
    with one.transaction() as changes:
        changes.set_properties({"a": "b"})
        for number, each in enumerate((other, changes)):
            with each.update_schema() as schema:
                schema.add_column(f"more{number}", LongType())


@IN_SQLITE
@pytest.mark.parametrize(
    ("kind", "match", "work"),
    [
        (ValueError, "a table is named as in namespace.table", lambda lake: lake.load_table("orders")),
        (NoSuchTableError, r"db\.no: create_table\(\) creates it", lambda lake: lake.load_table("db.no")),
        (NoSuchNamespaceError, "create_namespace", lambda lake: lake.create_table("no.orders", SCHEMA)),
        (Error, r"db\.orders already exists", lambda lake: lake.create_table("db.orders", SCHEMA)),
        (AttributeError, "correct the call", lambda lake: lake.create_table("db.more", SCHEMA, location=5)),
        (Error, "another type", lambda lake: lake.create_table("db.more", pa.schema([("a", pa.duration("s"))]))),
        (ValueError, "None", lambda lake: lake.create_table("db.more", SCHEMA, properties={"a": None})),
        (ValueError, r"db\.orders: .* nope", lambda lake: lake.load_table("db.orders").delete("nope = 1")),
        (ValueError, r"db\.orders: .* nope", lambda lake: lake.load_table("db.orders").scan("nope = 1").to_arrow()),
        (Error, "'id =' is no condition", lambda lake: lake.load_table("db.orders").delete("id =")),
        (ValueError, r"db\.orders: .* nope", lambda lake: evolved(lake.load_table("db.orders"))),
        (
            ValueError,
            "long, and the frame has",
            lambda lake: lake.load_table("db.orders").append(pa.table({"id": ["a"]})),
        ),
        (ValueError, r"db\.orders: .* 5", lambda lake: lake.load_table("db.orders").inspect.entries(snapshot_id=5)),
        (
            ValueError,
            r"db\.orders: .* 5",
            lambda lake: lake.load_table("db.orders").maintenance.expire_snapshots().by_id(5),
        ),
        (CommitFailedException, "load the table again", interleaved),
        (KeyError, '"nope"', lambda lake: lake.load_table("db.orders").upsert(rows(1), join_cols=["nope"])),
    ],
)
def test_a_refusal_says_where_and_what_to_do(lake: Lake, kind: type[Exception], match: str, work: Any) -> None:
    lake.create("orders")
    files = lake.files()
    with suppress(TransactionRolledBack), txpool.transaction() as tx:
        with pytest.raises(kind, match=match) as refused:
            work(lake.catalog)
        again = pickle.loads(pickle.dumps(refused.value))
        assert (type(again), str(again)) == (type(refused.value), str(refused.value))
        assert isinstance(refused.value, (ProgrammingError, NotSupportedError))
        assert "was not done" in str(refused.value)
        assert "\n" not in str(refused.value)
        tx.set_rollback_only()
    assert lake.files() == files


@pytest.mark.parametrize(
    "work",
    [
        lambda lake, _: lake.create_namespace("n" * 256),
        lambda lake, _: lake.create_namespace("more", {"k" * 256: "v"}),
        lambda lake, _: lake.create_namespace("more", {"k": "v" * 1001}),
        lambda lake, _: lake.update_namespace_properties("db", updates={"k": "v" * 1001}),
        lambda lake, _: lake.rename_table("db.orders", f"db.{'n' * 256}"),
        lambda lake, _: lake.create_table(f"db.{'n' * 256}", SCHEMA),
        lambda lake, _: relocated(lake.load_table("db.orders")),
        lambda lake, root: lake.create_table(
            "db.more", SCHEMA, location=f"{root}/{'d' * 100}/{'e' * 100}" + "/f" * 400
        ),
    ],
)
def test_what_the_catalogs_tables_would_cut_is_refused(lake: Lake, work: Any) -> None:
    """MariaDB cuts it in silence if its sql_mode is not strict, and PostgreSQL ends the transaction."""
    lake.create("orders")
    files = lake.files()
    with txpool.transaction():
        if lake.place.kind == "mariadb":
            with closing(lake.place.orders.connect()) as connection:
                connection.cursor().execute("set session sql_mode = ''")
        with pytest.raises(ProgrammingError, match=r"was not done: .* has \d+ characters, .* hold (255|1000)"):
            work(lake.catalog, lake.folder / "wh")
        lake.append("orders", 1)
    assert lake.ids("orders") == [1]
    assert not [each for each in lake.files() - files if "orders" not in each]


@IN_SQLITE
@pytest.mark.parametrize("name", ["", ".", "..", "orders/more"])
def test_no_table_s_files_are_among_those_of_another(lake: Lake, name: str) -> None:
    """Removal of orphan files takes what is below a table's location, and is not named by it, for its own."""
    lake.create("orders")
    with txpool.transaction():
        lake.catalog.create_namespace((name or "more",))
        for identifier in (("db", name), (name or "more", name and "t")):
            with pytest.raises(ValueError, match="is no name"):
                lake.catalog.create_table(identifier, SCHEMA)


@IN_SQLITE
def test_frames_of_pandas_and_polars(lake: Lake) -> None:
    lake.create("orders")
    with txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(pd.DataFrame({"id": [1], "name": ["a"]}))
        table.append(pl.DataFrame({"id": [2], "name": ["b"]}))
    assert lake.ids("orders") == [1, 2]


@IN_SQLITE
def test_several_catalogs_in_one_transaction(lake: Lake) -> None:
    other = lake.warehouse("other")
    lake.create("orders")
    with txpool.transaction():
        txpool.lake.catalog(other).create_namespace("db")
        txpool.lake.catalog(other).create_table("db.orders", SCHEMA).append(rows(9))
        lake.append("orders", 1)
    with txpool.transaction():
        assert txpool.lake.catalog(other).load_table("db.orders").scan().to_arrow()["id"].to_pylist() == [9]
    assert lake.ids("orders") == [1]


@pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)
def test_a_conflict_is_tried_again(lake: Lake) -> None:
    lake.create("orders")
    both = threading.Barrier(2, timeout=60)
    attempts = []

    @txpool.transactional(attempts=20)
    def append(number: int) -> None:
        lake.append("orders", number)
        attempts.append(number)
        if attempts.count(number) == 1:
            both.wait()

    threads = [threading.Thread(target=append, args=[number]) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert lake.ids("orders") == [1, 2]
    assert len(attempts) > 2
    assert lake.rows() == 0


@IN_POSTGRESQL
def test_a_conflict_rolls_back_and_says_so(lake: Lake) -> None:
    lake.create("orders")
    with pytest.raises(TransactionRolledBack) as error, txpool.transaction():
        lake.append("orders", 1)
        files = lake.files()
        txpool.transactional("requires_new")(lake.append)("orders", 2)
    assert "changed by another transaction" in str(error.value.__cause__)
    assert lake.ids("orders") == [2]
    assert not [each for each in files & lake.files() if each.endswith(".journal")]


@IN_SQLITE
def test_a_catalog_ends_with_its_transaction(lake: Lake) -> None:
    lake.create("orders")
    with txpool.transaction():
        catalog = lake.catalog
        table = catalog.load_table("db.orders")
    files = lake.files()
    for transaction in (False, True):
        for work in (
            lambda: catalog.load_table("db.orders"),
            lambda: table.append(rows(1)),
            lambda: catalog.create_table("db.more", SCHEMA),
            lambda: table.io.new_output(f"{table.location()}/data/a.parquet"),
        ):
            with pytest.raises(ProgrammingError, match="has ended, and nothing was done"):
                if transaction:
                    with txpool.transaction():
                        work()
                else:
                    work()
    assert lake.files() == files
    with pytest.raises(ProgrammingError, match="outside a transaction"):
        lake.catalog


def test_a_savepoint_that_takes_changes_back_rolls_the_whole_back(lake: Lake) -> None:
    lake.create("orders")
    files = lake.files()
    with pytest.raises(TransactionRolledBack) as error, txpool.transaction():
        lake.append("orders", 1)
        with lake.place.orders.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("savepoint mine")
            lake.append("orders", 2)
            cursor.execute("rollback to savepoint mine")
    assert "savepoint" in str(error.value.__cause__)
    assert lake.ids("orders") == []
    assert lake.files() == files


def test_a_catalog_of_the_first_schema_is_refused(lake: Lake) -> None:
    lake.create("orders")
    table = "txpool_spark.iceberg_tables" if lake.place.kind == "postgresql" else "iceberg_tables"
    lake.place.sql("orders", f"alter table {table} drop column iceberg_type")
    with pytest.raises(NotSupportedError, match="add column iceberg_type"):
        Warehouse(lake.source.settings).bind()
    lake.place.sql("orders", f"alter table {table} add column iceberg_type varchar(5)")
    assert lake.ids("orders") == []


@IN_SQLITE
def test_a_location_as_hadoop_writes_it(lake: Lake) -> None:
    lake.create("orders")
    for number, location in enumerate((f"file:{lake.folder}/wh/db/h", f"file://{lake.folder}/wh/db/u")):
        with txpool.transaction():
            lake.catalog.create_table(f"db.t{number}", SCHEMA, location=location).append(rows(1))
        assert lake.ids(f"t{number}") == [1]
        with pytest.raises(ConfigurationError, match="is not in it"), txpool.transaction():
            lake.catalog.create_table("db.out", SCHEMA, location=location.replace("/wh/", "/out/"))
    assert not lake.folder.joinpath("out").exists()


@IN_SQLITE
def test_a_clock_that_is_behind_leaves_a_table_that_engines_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in Java, Go and Rust refuse one whose history is a minute or more out of order."""
    lake.create("orders")
    ahead = time.time() + 86400
    with monkeypatch.context() as patch, txpool.transaction():
        patch.setattr(time, "time", lambda: ahead)  # of another machine
        lake.append("orders", 1)
    changes: list[Callable[[Any], object]] = [
        lambda table: table.append(rows(2)),
        lambda table: table.transaction().set_properties(a="b").commit_transaction(),
        lambda table: table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit(),
        lambda table: table.append(rows(3)),
    ]
    for change in changes:
        with txpool.transaction():
            change(lake.catalog.load_table("db.orders"))
    with txpool.transaction():
        metadata = lake.catalog.load_table("db.orders").metadata
    assert len(metadata.snapshot_log) == 4
    for log in (metadata.snapshot_log, metadata.metadata_log, metadata.snapshots):
        times = [each.timestamp_ms for each in log]
        assert times == sorted(times)
        assert times[-1] <= metadata.last_updated_ms
    assert lake.ids("orders") == [1, 3]


@IN_SQLITE
def test_what_is_outside_or_unsafe_is_refused(lake: Lake, tmp_path: Path) -> None:
    lake.create("orders")
    files = lake.files()
    with txpool.transaction():
        with pytest.raises(ConfigurationError, match="is not in it"):
            lake.catalog.create_table("db.out", SCHEMA, location=str(tmp_path / "out"))
        with pytest.raises(ConfigurationError, match="is not in it"):
            lake.catalog.create_table("db.out", SCHEMA, location=f"{tmp_path}/wh/../out")
        with pytest.raises(NotSupportedError, match="run code of others"):
            lake.catalog.create_table("db.out", SCHEMA, properties={"py-io-impl": "a.B"})
        table = lake.catalog.load_table("db.orders")
        with pytest.raises(NotSupportedError, match="delete files before"), table.transaction() as changes:
            changes.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
        with pytest.raises(NotSupportedError, match="format version 3"):
            lake.catalog.create_table("db.later", SCHEMA, properties={"format-version": "3"})
        with pytest.raises(ProgrammingError, match="'' is no name of a table"):
            lake.catalog.create_table(("db", ""), SCHEMA)
        with pytest.raises(NotSupportedError, match="purge_table"):
            lake.catalog.purge_table("db.orders")
        with pytest.raises(NotSupportedError, match="add_files"):
            table.add_files(["/etc/passwd"])
    assert not tmp_path.joinpath("out").exists()
    assert lake.files() >= files


@IN_SQLITE
def test_a_change_that_was_begun_and_not_committed_rolls_back(lake: Lake) -> None:
    lake.create("orders")
    files = lake.files()
    with pytest.raises(TransactionRolledBack) as error, txpool.transaction():
        lake.catalog.load_table("db.orders").transaction().append(rows(1))
    assert "commit_transaction()" in str(error.value.__cause__)
    assert lake.files() == files


@IN_SQLITE
def test_a_change_that_fails_in_part_rolls_the_whole_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    files = lake.files()
    from pyiceberg.manifest import ManifestWriter

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(TransactionRolledBack), txpool.transaction():
        lake.append("orders", 1)
        with monkeypatch.context() as patch:
            patch.setattr(ManifestWriter, "add_entry", fails)
            patch.setattr(ManifestWriter, "add", fails, raising=False)
            with pytest.raises(ValueError, match="empty manifest"):
                lake.append("orders", 2)
    assert lake.files() == files
    assert lake.ids("orders") == []


@IN_SQLITE
def test_a_journal_that_cannot_be_begun_leaves_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    files = lake.files()
    from txpool.resources.iceberg.tables import LakeTables

    def fails(*_: object) -> None:
        raise OperationalError("the row was not written")

    with pytest.raises(TransactionRolledBack), txpool.transaction():
        with monkeypatch.context() as patch:
            patch.setattr(LakeTables, "insert", fails)
            with pytest.raises(OperationalError, match="not written"):
                lake.append("orders", 1)
    assert (lake.files(), lake.rows()) == (files, 0)


@IN_POSTGRESQL
def test_no_operator_of_others_runs(lake: Lake) -> None:
    """Whoever may create in a schema of the search path makes ones that fit better than the server's."""
    lake.create("orders")
    lake.place.sql("orders", "create table public.ran (as_role text)")
    lake.place.sql(
        "orders",
        "create function public.theirs(varchar, varchar) returns boolean language plpgsql as "
        "$$ begin insert into public.ran values (current_user); return true; end $$",
    )
    for operator in ("=", "~~"):
        lake.place.sql(
            "orders", f"create operator public.{operator} (leftarg=varchar, rightarg=varchar, function=public.theirs)"
        )
    with txpool.transaction():
        catalog = lake.catalog
        catalog.create_namespace("a_b.c", {"k": "v", "l": "w"})
        assert not catalog.namespace_exists("axb")
        assert catalog.list_namespaces("a_b") == [("a_b", "c")]
        assert sorted(catalog.list_namespaces()) == [("a_b",), ("db",)]
        catalog.update_namespace_properties("a_b.c", {"k", "l"}, {"m": "x", "n": "y"})
        assert catalog.load_namespace_properties("a_b.c") == {"m": "x", "n": "y"}
        catalog.create_table("a_b.c.t", SCHEMA)
        catalog.rename_table("a_b.c.t", "a_b.c.u")
        assert catalog.list_tables("a_b.c") == [("a_b", "c", "u")]
        catalog.drop_table("a_b.c.u")
        catalog.drop_namespace("a_b.c")
        lake.append("orders", 1)
    assert lake.ids("orders") == [1]
    assert lake.place.sql("orders", "select * from public.ran") == []
