"""Rows that are appended to Delta tables when the transaction commits, and what is refused before a row is there."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import sys
from decimal import Decimal
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import txpool
from tests.integration.resources.delta.conftest import SCHEMA, Tables, actions, committed, transactions
from txpool import lake
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.findings.finding import Severity
from txpool.resources.delta.manager import MANAGER


def test_rows_of_two_tables_and_a_ledger_appear_together(tables: Tables) -> None:
    tables.create()
    tables.create("sales/lines", partition_by=["part"])
    with txpool.transaction():
        assert tables.append(1, 2) == 2
        assert lake.write_table(pd.DataFrame({"n": [3]}), tables.file, "orders") == 1
        assert lake.write_table(pl.DataFrame({"part": ["x/y", None], "n": [4, 5]}), tables.file, "sales/lines") == 2
        assert tables.append(to="orders") == 0
        assert tables.committed() == tables.committed("sales/lines") == []
    assert tables.committed() == [1, 2, 3]
    assert tables.committed("sales/lines") == [4, 5]
    found = DeltaTable(str(tables.place / "sales/lines")).to_pyarrow_table().sort_by("n").to_pylist()
    assert found == [{"n": 4, "part": "x/y"}, {"n": 5, "part": None}]
    assert len(transactions(tables.place / "orders")) == 1, "two writes of one transaction are one commit"
    assert tables.left() == []
    assert tables.unnamed() == set()


def test_a_commit_syncs_each_entry_of_the_log_once(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    for number in range(3):
        with txpool.transaction():
            tables.append(number)
    synced: list[str] = []
    monkeypatch.setattr("txpool.resources.delta.table.sync_file", lambda name, folder: synced.append(name))
    with txpool.transaction():
        tables.append(3)
    assert sorted(synced) == [*(f"{version:020}.json" for version in range(5)), "entry"]
    assert tables.committed() == [0, 1, 2, 3]


@pytest.mark.costly
def test_the_conformance_kit(tables: Tables) -> None:
    run = run_cases(DataSourceSettings.load(tables.file), patience=1)
    failed = [each for each in run.results if each.verdict is Verdict.FAILED]
    assert not failed
    assert len([each for each in run.results if each.verdict is Verdict.PASSED]) >= 12
    assert tables.left() == []


def test_texts_that_are_hard_to_write_into_a_path_are_partitions(tables: Tables) -> None:
    parts = [" ", "a=b", "\u00e9/\\", "x\ny", "%2F", "..", "\t~#?:*|<>\"'", None, "null", "\u2028", "\x85", "\u200b"]
    tables.create(partition_by=["part"])
    with txpool.transaction():
        lake.write_table(pa.table({"n": range(len(parts)), "part": parts}), tables.file, "orders")
    found = DeltaTable(str(tables.place / "orders")).to_pyarrow_table().sort_by("n")
    assert found["part"].to_pylist() == parts
    assert tables.unnamed() == set()


def test_a_folder_that_deltalake_takes_for_another_one(tables: Tables) -> None:
    tables.create("p q")
    (tables.place / "p%20q" / "_delta_log").mkdir(parents=True)
    with txpool.transaction(), pytest.raises(txpool.NotSupportedError, match="takes it for another"):
        tables.append(1, to="p%20q")
    with txpool.transaction():
        tables.append(1, to="p q")
    assert tables.committed("p q") == [1]


def test_work_that_comes_to_nothing_ends(tables: Tables) -> None:
    """As a write that was refused and caught, or a Spark job without rows: its manifest appends nothing."""
    DeltaTable.create(str(tables.place / "strict"), pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with txpool.transaction() as transaction:
        with pytest.raises(txpool.DataError, match="non-nullable"):
            lake.write_table(pa.table({"n": pa.array([None], pa.int64())}), tables.file, "strict")
    assert not transaction.unanswered
    assert tables.left() == []


def test_nothing_is_left_of_a_rollback(tables: Tables) -> None:
    tables.create()
    with pytest.raises(ValueError, match="no"), txpool.transaction():
        tables.append(1)
        raise ValueError("no")
    assert tables.committed() == []
    assert tables.left() == []
    assert tables.unnamed() == set()


@pytest.mark.parametrize("mode", ["overwrite", "upsert", "merge", "delete", "error", "ignore"])
def test_what_others_could_contradict_is_refused(mode: str, tables: Tables) -> None:
    tables.create()
    with txpool.transaction():
        with pytest.raises(txpool.NotSupportedError, match="Between prepare and commit others may change the table"):
            lake.write_table(pa.table({"n": [1]}), tables.file, "orders", mode)
        tables.append(2)
    assert tables.committed() == [2]


def test_where_it_cannot_write(tables: Tables) -> None:
    tables.create()
    rows = pa.table({"n": [1]})
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        lake.write_table(rows, tables.file, "orders")
    with txpool.transaction():
        with pytest.raises(txpool.OperationalError, match=r"no Delta table missing in .*DeltaTable\.create"):
            lake.write_table(rows, tables.file, "missing")
        for name in ("../orders", "", "/orders", ".txpool/staged"):
            with pytest.raises(txpool.ProgrammingError, match="no name of a table"):
                lake.write_table(rows, tables.file, name)
        with pytest.raises(txpool.NotSupportedError, match="has no Delta tables"):
            lake.write_table(rows, tables.site / "ledger.properties", "orders")
        (tables.place / "link").symlink_to(tables.place / "orders")
        with pytest.raises(txpool.OperationalError, match="cannot be written"):
            lake.write_table(rows, tables.file, "link")
    assert tables.committed() == []


def test_a_log_that_cannot_be_read(tables: Tables) -> None:
    """As by a user without the right, or on a broken disk."""
    tables.create()
    entry = tables.place / "orders" / "_delta_log" / f"{0:020}.json"
    text = entry.read_bytes()
    entry.unlink()
    entry.symlink_to(entry)
    with pytest.raises(txpool.OperationalError, match=r"tables\.orders: .*0\.json") as refused, txpool.transaction():
        tables.append(1)
    assert "\n" not in str(refused.value)
    entry.unlink()
    entry.write_bytes(text)
    with txpool.transaction():
        tables.append(1)
    assert tables.committed() == [1]


def test_without_deltalake_it_says_what_to_install(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with txpool.transaction(), pytest.raises(txpool.ConfigurationError, match=r"pip install 'txpool\[delta\]'"):
        tables.append(1)


UTC = datetime.UTC
EVERY = pa.table(
    {
        "byte": pa.array([-128, None], pa.int8()),
        "short": pa.array([2**15 - 1, None], pa.int16()),
        "int": pa.array([-(2**31), None], pa.int32()),
        "long": pa.array([2**63 - 1, None], pa.int64()),
        "float": pa.array([1.5, float("inf")], pa.float32()),
        "double": pa.array([-0.0, 1e308], pa.float64()),
        "flag": pa.array([True, None]),
        "text": pa.array(["", "\U0001f600"]),
        "bytes": pa.array([b"\0\xff", None], pa.binary()),
        "day": pa.array([datetime.date(1, 1, 1), None]),
        "moment": pa.array([datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime.datetime(1, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
        "money": pa.array([Decimal("-1.20"), None], pa.decimal128(38, 2)),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "map": pa.array([[("a", None)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": 1, "y": ["q"]}, None], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])),
        "structs": pa.array([[{"x": 1}, None], None], pa.list_(pa.struct([("x", pa.int64())]))),
    }
)


@pytest.mark.parametrize("made", [lambda rows: rows, pl.from_arrow], ids=["pyarrow", "polars"])
def test_each_type_comes_back_as_it_was(made: Any, tables: Tables) -> None:
    rows = EVERY if made is not pl.from_arrow else EVERY.drop(["map"])
    DeltaTable.create(str(tables.place / "every"), rows.schema)
    with txpool.transaction():
        lake.write_table(made(rows), tables.file, "every")
    found = DeltaTable(str(tables.place / "every")).to_pyarrow_table()
    assert repr(found.select(rows.column_names).to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize("column", ["byte", "short", "int", "long", "flag", "day", "moment", "local"])
def test_each_type_of_a_partition_comes_back_as_it_was(column: str, tables: Tables) -> None:
    rows = EVERY.select([column]).append_column("n", pa.array([1, 2]))
    DeltaTable.create(str(tables.place / "every"), rows.schema, partition_by=[column])
    with txpool.transaction():
        lake.write_table(rows, tables.file, "every")
    found = DeltaTable(str(tables.place / "every")).to_pyarrow_table().sort_by("n").select([column, "n"])
    assert repr(found.to_pylist()) == repr(rows.to_pylist())


def test_a_partition_s_instant_is_the_same_in_every_time_zone(tables: Tables) -> None:
    """deltalake writes it without one, and Spark reads that in its session's."""
    rows = pa.table({"n": [1, 2, 3], "at": pa.array([-1, 10**15, None], pa.timestamp("us", "UTC"))})
    DeltaTable.create(str(tables.place / "orders"), rows.schema, partition_by=["at"])
    with txpool.transaction():
        lake.write_table(rows, tables.file, "orders")
    found = [each["add"]["partitionValues"]["at"] for each in actions(tables.place / "orders") if "add" in each]
    assert sorted(map(str, found)) == ["1969-12-31T23:59:59.999999Z", "2001-09-09T01:46:40.000000Z", "None"]
    assert DeltaTable(str(tables.place / "orders")).to_pyarrow_table().sort_by("n").to_pylist() == rows.to_pylist()


MONEY = Decimal("9007199254740993.11")
_LARGE = Decimal(10**37 + 1)
_WITHIN = pa.struct([("d", pa.decimal128(18, 2)), ("f", pa.float32())])


@pytest.mark.parametrize(
    ("values", "least", "greatest"),
    [
        (pa.array([MONEY, None], pa.decimal128(18, 2)), MONEY, MONEY),
        (pa.array([_LARGE, -_LARGE], pa.decimal128(38, 0)), -_LARGE, _LARGE),
        (pa.array([None], pa.decimal128(38, 0)), None, None),
        (pa.array([-5.0, math.nan]), -5, Decimal("1.7976931348623157e+308")),
        (pa.array([math.inf, math.nan]), None, None),
        (
            pa.array([{"d": MONEY, "f": 1.0}, {"d": None, "f": math.nan}, None], _WITHIN),
            {"d": MONEY, "f": 1},
            {"d": MONEY, "f": Decimal("3.4028234663852886e+38")},
        ),
    ],
)
def test_readers_pass_over_no_row(values: Any, least: Any, greatest: Any, tables: Tables) -> None:
    """They pass over a file by its limits in the log, which deltalake makes wrong for decimals and NaN."""
    schema = pa.schema([("x", values.type), ("n", pa.int64())])
    DeltaTable.create(str(tables.place / "orders"), schema)
    with txpool.transaction():
        lake.write_table(pa.table([values, pa.array(range(len(values)))], schema=schema), tables.file, "orders")
    (stats,) = [each["add"]["stats"] for each in actions(tables.place / "orders") if "add" in each]
    found = json.loads(stats, parse_float=Decimal, parse_int=Decimal)
    assert [found[limits].get("x") for limits in ("minValues", "maxValues")] == [least, greatest]


def test_a_long_decimal_is_found_by_a_filter(tables: Tables) -> None:
    rows = pa.table({"x": pa.array([MONEY], pa.decimal128(18, 2)), "n": [1]})
    DeltaTable.create(str(tables.place / "orders"), rows.schema)
    with txpool.transaction():
        lake.write_table(rows, tables.file, "orders")
    DeltaTable(str(tables.place / "orders")).create_checkpoint()
    table = DeltaTable(str(tables.place / "orders"))
    assert table.to_pyarrow_table(filters=pc.field("x") == rows["x"][0]).num_rows == 1


@pytest.mark.parametrize("column", ["float", "double", "money", "bytes"])
def test_a_partition_whose_values_would_change_is_refused(column: str, tables: Tables) -> None:
    """deltalake writes -1.20 as -1.-20 there, and a float with hundreds of digits."""
    rows = EVERY.select([column]).append_column("n", pa.array([1, 2]))
    DeltaTable.create(str(tables.place / "every"), rows.schema, partition_by=[column])
    with txpool.transaction(), pytest.raises(txpool.NotSupportedError, match=f"partitions by {column}"):
        lake.write_table(rows, tables.file, "every")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array(["1"]), "column n is string, and int64"),
        (pa.array([1.0]), "column n is double, and int64"),
        (pa.array([2**63], pa.uint64()), "large numbers would become negative"),
        (pa.array([True]), "column n is bool, and int64"),
    ],
)
def test_a_value_that_would_change_is_refused(values: Any, says: str, tables: Tables) -> None:
    tables.create()
    with txpool.transaction():
        with pytest.raises(txpool.DataError, match=says):
            lake.write_table(pa.table({"n": values}), tables.file, "orders")
        tables.append(2)
    assert tables.committed() == [2]


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("ns", "UTC")), "nanoseconds would be cut off"),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("us")), "without a zone"),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("us", "Asia/Tokyo")), "the time zone would be lost"),
        (pa.timestamp("us"), pa.array([1], pa.time64("us")), "column x is time64"),
        (pa.decimal128(4, 1), pa.array([Decimal("1.25")]), "the decimals would be rounded"),
        (pa.int8(), pa.array([300], pa.int16()), "300"),
        (pa.date32(), pa.array([1], pa.date64()), "the time of day would be lost"),
        (pa.float32(), pa.array([0.1], pa.float64()), "digits would be lost"),
        (pa.list_(pa.int32()), pa.array([["a"]]), "column x is list"),
    ],
)
def test_what_a_type_cannot_hold_is_refused(kind: Any, values: Any, says: str, tables: Tables) -> None:
    DeltaTable.create(str(tables.place / "typed"), pa.schema([("x", kind)]))
    with txpool.transaction(), pytest.raises(txpool.DataError, match=says):
        lake.write_table(pa.table({"x": values}), tables.file, "typed")
    assert committed(tables.place / "typed", "x") == []


_TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
_ONCE = pa.struct([("a", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (_ONCE, _TWICE),
        (pa.list_(_ONCE), pa.ListArray.from_arrays([0, 1], _TWICE)),
        (pa.map_(pa.string(), _ONCE), pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), _TWICE)),
        (pa.struct([("s", _ONCE)]), pa.StructArray.from_arrays([_TWICE], ["s"])),
    ],
    ids=["struct", "list", "map", "struct within"],
)
@pytest.mark.parametrize(
    "made",
    [lambda values: pa.table({"x": values}), lambda values: pd.DataFrame({"x": _as_pandas(values)})],
    ids=["pyarrow", "pandas"],
)
def test_a_field_that_a_struct_has_twice_is_refused(made: Any, kind: Any, values: Any, tables: Tables) -> None:
    """Arrow would take the first of them alone."""
    DeltaTable.create(str(tables.place / "typed"), pa.schema([("x", kind)]))
    with txpool.transaction(), pytest.raises(txpool.DataError, match="two fields of one name"):
        lake.write_table(made(values), tables.file, "typed")
    assert committed(tables.place / "typed", "x") == []


def _as_pandas(values: pa.Array) -> Any:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([values])))


def test_what_the_table_refuses_is_refused_before_the_commit(tables: Tables) -> None:
    """Constraints, NOT NULL, and an empty text by which a table is partitioned, which would become null."""
    tables.create().alter.add_constraint({"positive": "n > 0"})
    tables.create("parts", partition_by=["part"])
    DeltaTable.create(str(tables.place / "strict"), pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with txpool.transaction():
        for text in ("a b", "a full disk (os error 28)"):  # deltalake quotes the row
            with pytest.raises(txpool.DataError, match="failed validation check"):
                tables.append(-1, part=text)
        for part in ("", "__HIVE_DEFAULT_PARTITION__"):
            with pytest.raises(txpool.DataError, match="partitions would make it null"):
                tables.append(1, to="parts", part=part)
        with pytest.raises(txpool.DataError, match="non-nullable"):
            lake.write_table(pa.table({"n": pa.array([None], pa.int64())}), tables.file, "strict")
        tables.append(1)
    assert tables.committed() == [1]
    assert tables.committed("parts") == tables.committed("strict") == []
    assert tables.left() == []


def test_a_table_that_needs_more_than_rows_is_refused(tables: Tables) -> None:
    log = tables.place / "made" / "_delta_log"
    log.mkdir(parents=True)
    field = {"name": "n", "type": "long", "nullable": True, "metadata": {"delta.generationExpression": "1"}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 4}
    (log / f"{0:020}.json").write_text(f"{json.dumps({'protocol': protocol})}\n{json.dumps({'metaData': metadata})}\n")
    with txpool.transaction(), pytest.raises(txpool.NotSupportedError, match="generated or identity column, n"):
        tables.append(1, to="made")


LENGTH = "__CHAR_VARCHAR_TYPE_STRING"


def with_lengths(tables: Tables, kind: str, name: str = "texts") -> None:
    """A table as Spark makes it: a text whose length only the column's metadata has."""
    part = {"name": "part", "type": "string", "nullable": True, "metadata": {LENGTH: kind}}
    number = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
    DeltaTable.create(
        str(tables.place / name), deltalake.Schema.from_json(json.dumps({"type": "struct", "fields": [number, part]}))
    )


@pytest.mark.parametrize(
    ("kind", "kept", "refused"),
    [
        ("varchar(3)", ["", "abc", "\U0001f600\u00e9\u00e9", None], ["abcd", "abc "]),
        ("char(3)", ["abc", "a  ", None], ["abcd", "ab", ""]),
    ],
)
def test_a_text_of_another_length_is_refused(kind: str, kept: list[Any], refused: list[str], tables: Tables) -> None:
    """Spark would refuse it or pad it, and reads tables as if all texts had that length."""
    with_lengths(tables, kind)
    for text in refused:
        with pytest.raises(txpool.DataError, match=rf"part is {re.escape(kind)}, .* nothing was"), txpool.transaction():
            tables.append(1, to="texts", part=text)
    with txpool.transaction():
        for text in kept:
            tables.append(1, to="texts", part=text)
    found = DeltaTable(str(tables.place / "texts")).to_pyarrow_table()["part"].to_pylist()
    assert sorted(found, key=str) == sorted(kept, key=str)


def test_lengths_of_texts_within_others_are_refused(tables: Tables) -> None:
    field = {"name": "n", "nullable": True, "metadata": {LENGTH: "array<varchar(3)>"}}
    field["type"] = {"type": "array", "elementType": "string", "containsNull": True}
    schema = deltalake.Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))
    DeltaTable.create(str(tables.place / "within"), schema)
    with (
        pytest.raises(txpool.NotSupportedError, match=r"texts of a certain length within others, n, array<varchar"),
        txpool.transaction(),
    ):
        lake.write_table(pa.table({"n": [["abcd"]]}), tables.file, "within")


def test_a_table_that_changes_before_prepare_rolls_back(tables: Tables) -> None:
    tables.create()
    with (
        pytest.raises(txpool.TransactionRolledBack, match="was changed since its rows were written"),
        txpool.transaction(),
    ):
        tables.append(1)
        DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
    assert tables.committed() == []
    assert tables.left() == []


def test_a_table_that_changes_between_two_writes(tables: Tables) -> None:
    tables.create()
    with pytest.raises(txpool.OperationalError, match=r"was changed since .* wrote rows"), txpool.transaction():
        tables.append(1)
        DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
        tables.append(2)
    with txpool.transaction():
        with pytest.raises(txpool.DataError, match="failed validation check"):
            tables.append(-1)
        DeltaTable(str(tables.place / "orders")).alter.drop_constraint("positive")
        tables.append(-2)
    assert tables.committed() == [-2]


def test_others_append_meanwhile(tables: Tables) -> None:
    table = tables.create()
    with txpool.transaction():
        tables.append(1)
        write_deltalake(table, pa.table({"n": [7], "part": ["x"]}, schema=SCHEMA), mode="append")
    assert tables.committed() == [1, 7]


def test_the_check_says_how_long_files_are_kept(tables: Tables) -> None:
    tables.create()
    tables.create("short", **{"delta.deletedFileRetentionDuration": "interval 0 hours"})
    settings = DataSourceSettings.load(tables.file)
    found = [*MANAGER.findings(settings, stale_after=0, timeout=None)]
    assert [each.found for each in found if each.severity is Severity.OK and each.topic == "maintenance"] == [
        "table orders keeps files for 604800 s that nothing names (delta.deletedFileRetentionDuration)"
    ]
    assert [each.found for each in found if each.severity is Severity.WARNING] == [
        "table short has delta.deletedFileRetentionDuration = interval 0 hours"
    ]


def test_a_process_that_was_forked_is_told_what_to_do(tables: Tables) -> None:
    """deltalake does not outlive a fork, and says so by what is no Exception."""
    tables.create()
    with txpool.transaction():
        tables.append(1)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with txpool.transaction():
                tables.append(2)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as told:
        text = told.read()
    assert text.startswith("OperationalError"), text
    assert "start it by spawn or forkserver" in text
    assert tables.committed() == [1]
