"""A commit makes the table's checkpoint if one is due: what a commit has to read and to sync does not grow with it."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import pytest
from deltalake import DeltaTable

import txpool
from tests.integration.resources.delta.conftest import Tables, actions, transactions


def appended(tables: Tables, *numbers: int) -> None:
    for number in numbers:
        with txpool.transaction():
            tables.append(number)


def checkpoints(tables: Tables) -> list[int]:
    found = (tables.place / "orders" / "_delta_log").glob("*.checkpoint.parquet")
    return sorted(int(each.name[:20]) for each in found)


def test_what_a_commit_syncs_does_not_grow(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    counts, real = [0], os.fsync

    def counted(descriptor: int) -> None:
        counts[-1] += 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    for number in range(40):
        counts.append(0)
        appended(tables, number)
    assert checkpoints(tables) == [10, 20, 30, 40]
    assert counts[11:21] == counts[21:31] == counts[31:41]
    assert tables.committed() == [*range(40)]
    assert tables.left() == []


def test_a_table_is_read_by_its_checkpoint_alone(tables: Tables) -> None:
    tables.create(partition_by=["part"], **{"delta.checkpointInterval": "3"})
    appended(tables, 1, 2, 3)
    branches = transactions(tables.place / "orders")
    log = tables.place / "orders" / "_delta_log"
    for version in range(4):
        (log / f"{version:020}.json").unlink()
    table = DeltaTable(str(tables.place / "orders"))
    assert table.version() == 3
    assert [table.transaction_version(each) for each in branches] == [1, 1, 1]
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3]
    assert '"version":3' in (log / "_last_checkpoint").read_text()


def test_others_checkpoints_and_later_entries_are_no_obstacle(tables: Tables) -> None:
    table = tables.create(**{"delta.checkpointInterval": "2"})
    appended(tables, 1)
    DeltaTable(table.table_uri).create_checkpoint()
    appended(tables, 2, 3)
    DeltaTable(table.table_uri).create_checkpoint()
    appended(tables, 4)
    assert checkpoints(tables) == [1, 2, 3, 4]
    assert sorted(DeltaTable(table.table_uri).to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3, 4]


def test_a_table_that_forgets_transactions_keeps_ours(tables: Tables) -> None:
    """Recovery would append again what it does not find. Spark keeps those alone that say that they are new."""
    tables.create(**{"delta.setTransactionRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "1"})
    appended(tables, 1)
    (found,) = [each["txn"] for each in actions(tables.place / "orders") if "txn" in each]
    in_a_thousand_years = (time.time() + 1000 * 365 * 86_400) * 1000
    assert found["lastUpdated"] > in_a_thousand_years
    assert DeltaTable(str(tables.place / "orders")).transaction_version(found["appId"]) == 1


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_table_that_asks_for_none_gets_none(value: str, tables: Tables) -> None:
    tables.create()
    log = tables.place / "orders" / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    log.write_text(text.replace('"configuration":{}', f'"configuration":{{"delta.checkpointInterval":"{value}"}}'))
    appended(tables, *range(11))
    assert checkpoints(tables) == []
    assert tables.committed() == [*range(11)]


def test_a_commit_stands_whose_checkpoint_fails(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables.create(**{"delta.checkpointInterval": "1"})

    def full(self: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", full)
        appended(tables, 1)
    assert "no checkpoint of version 1" in caplog.text
    assert checkpoints(tables) == []
    appended(tables, 2)
    assert checkpoints(tables) == [2]
    assert tables.committed() == [1, 2]
    assert tables.left() == []
