"""What dead transactions have left in a warehouse: recovery removes files only by a key that it has won."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

import txpool
from recovery import RecoveryManager
from tests.integration.lake.conftest import IN_POSTGRESQL, IN_SQLITE, Lake, rows
from tests.integration.resources.files.conftest import write_beside_a_ledger
from txpool.errors import Error, OperationalError, ProgrammingError
from txpool.lake.journals.folder import Journals
from txpool.lake.warehouse import LakeFiles, LakeStaging, Warehouse
from txpool.lake.work import LakeWork


def _ended(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, commit: bool) -> str:
    """A transaction whose process does nothing after its end, as if it were dead; its gtrid."""
    with monkeypatch.context() as patch:
        patch.setattr(LakeWork, "_after", lambda self, status: None)
        with suppress(ZeroDivisionError), txpool.transaction() as transaction:
            lake.append("orders", 1)
            gtrid: str = transaction.gtrid
            if not commit:
                1 / 0
    return gtrid


@pytest.mark.parametrize("commit", [True, False])
def test_the_row_tells_whether_files_are_published(lake: Lake, monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    lake.create("orders")
    before = lake.files()
    gtrid = _ended(lake, monkeypatch, commit=commit)
    staging = LakeStaging(lake.source.settings, 1.0)
    assert [each.gtrid for each in staging.tables()] == [gtrid]
    for each in staging.tables():
        staging.drop(each)
    assert lake.ids("orders") == ([1] if commit else [])
    assert (lake.files() == before) is (not commit)
    assert not [each for each in lake.files() if each.endswith(".journal")]
    assert (lake.rows(), staging.tables()) == (0, [])


@pytest.mark.parametrize("expired", [False, True])
def test_39_a_journal_that_a_restore_has_brought_back_removes_nothing_that_is_named(lake: Lake, expired: bool) -> None:
    """The transaction has committed since, and its row went with its journal: as with a copy of the folder by files."""
    lake.create("orders")
    with txpool.transaction() as transaction:
        lake.append("orders", 1)
        journal = Path(Journals("wh", str(lake.folder / "wh")).path_of(transaction.gtrid))
        copy = journal.read_bytes()
    if expired:
        with txpool.transaction():
            lake.append("orders", 2)
            lake.catalog.load_table("db.orders").maintenance.expire_snapshots().older_than(datetime.now()).commit()
    journal.write_bytes(copy)
    unnamed = Path(lake.folder, "wh", "db", "unnamed.parquet")
    unnamed.touch()
    with journal.open("ab") as file:
        file.write(b'"db/unnamed.parquet"\n')
    staging = LakeStaging(lake.source.settings, 1.0)
    for each in staging.tables():
        staging.drop(each)
    assert lake.ids("orders") == ([1, 2] if expired else [1])
    assert not unnamed.exists()
    assert (lake.rows(), staging.tables()) == (0, [])


@IN_SQLITE
def test_39_nor_does_it_in_a_warehouse_that_has_another_path_than_the_tables_name(lake: Lake) -> None:
    """As of a copy on another machine, whose catalog is a copy, too: tables name the files by their former paths."""
    lake.create("orders")
    with txpool.transaction() as transaction:
        lake.append("orders", 1)
        journal = Path(Journals("wh", str(lake.folder / "wh")).path_of(transaction.gtrid))
        copy = journal.read_bytes()
    journal.write_bytes(copy)
    (lake.folder / "wh").rename(lake.folder / "moved")
    file = lake.warehouse("moved")
    file.write_text(file.read_text().replace("name = moved", "name = wh"))
    files = {str(each) for each in (lake.folder / "moved").rglob("*.*") if each != journal}
    staging = LakeStaging(txpool.lake.opening.find_source(file).settings, 1.0)
    (left,) = staging.tables()
    with pytest.raises(OperationalError, match="Nothing was removed: mount it"):
        staging.drop(left)
    assert files == {str(each) for each in (lake.folder / "moved").rglob("*.*") if each != journal}
    (lake.folder / "moved").rename(lake.folder / "wh")
    for each in LakeStaging(lake.source.settings, 1.0).tables():
        LakeStaging(lake.source.settings, 1.0).drop(each)
    assert lake.ids("orders") == [1]


@IN_POSTGRESQL
def test_a_transaction_that_is_under_way_keeps_its_files(lake: Lake) -> None:
    lake.create("orders")
    with txpool.transaction() as transaction:
        lake.append("orders", 1)
        files = lake.files()
        with pytest.raises(Error):
            LakeStaging(lake.source.settings, 0.2).drop(LakeFiles(transaction.gtrid, ""))
        assert lake.files() == files
    assert lake.ids("orders") == [1]


@IN_POSTGRESQL
def test_who_is_swept_before_its_row_is_written_gives_up(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    files = lake.files()
    real = Journals.open

    def swept(self: Journals, gtrid: str) -> int:
        opened = real(self, gtrid)
        assert Warehouse(lake.source.settings).sweep(gtrid, 5.0)
        return opened

    monkeypatch.setattr(Journals, "open", swept)
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        with pytest.raises(OperationalError, match="recovery has swept"):
            lake.append("orders", 1)
    assert (lake.files(), lake.ids("orders"), lake.rows()) == (files, [], 0)


@IN_SQLITE
def test_a_sweep_that_was_killed_is_gone_on_with(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    before = lake.files()
    gtrid = _ended(lake, monkeypatch, commit=False)
    warehouse = Warehouse(lake.source.settings)
    assert warehouse._win(gtrid, 5.0)
    staging = LakeStaging(lake.source.settings, 1.0)
    for each in staging.tables():
        staging.drop(each)
    assert (lake.files(), lake.rows(), staging.tables()) == (before, 0, [])


def test_recovery_reports_a_warehouse_that_is_away(tmp_path: Path) -> None:
    write_beside_a_ledger(tmp_path, "wh")
    text = "name = wh\ndriver = iceberg\ncatalog = ledger.properties\nwarehouse = wh\n"
    (tmp_path / "wh.properties").write_text(text)
    txpool.configure(tmp_path / "txpool.properties")
    try:
        manager = RecoveryManager(tmp_path / "recovery.properties")
        assert "is no folder" in manager.scan().errors["staging wh"]
        assert manager.in_doubt() == []
        assert "is no folder" in manager.unanswered["wh"]
        (tmp_path / "wh").mkdir()
        assert manager.scan().errors == {}
        assert (manager.in_doubt(), manager.unanswered) == ([], {})
    finally:
        txpool.configure()


@IN_SQLITE
def test_a_row_without_its_journal_goes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    gtrid = _ended(lake, monkeypatch, commit=True)
    Warehouse(lake.source.settings).journals.path_of(gtrid).unlink()
    staging = LakeStaging(lake.source.settings, 1.0)
    assert [each.row_only for each in staging.tables()] == [True]
    staging.drop(staging.tables()[0])
    assert (lake.rows(), lake.ids("orders")) == (0, [1])


@IN_SQLITE
def test_forged_journals_remove_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake.create("orders")
    gtrid = _ended(lake, monkeypatch, commit=False)
    journal = Warehouse(lake.source.settings).journals.path_of(gtrid)
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (tmp_path / "wh" / "link").symlink_to(tmp_path)
    good = journal.read_text()
    staging = LakeStaging(lake.source.settings, 1.0)
    for forged in ('"../outside"\n', f'"{outside}"\n', '"link/outside"\n', '"_txpool/identity"\n'):
        journal.write_text(good.splitlines()[0] + "\n" + forged)
        with pytest.raises(Error):
            staging.drop(staging.tables()[0])
        assert outside.read_text() == "kept"
    journal.write_text("something else\n")
    with pytest.raises(OperationalError, match="is no journal"):
        staging.drop(staging.tables()[0])
    (tmp_path / "wh" / "_txpool").chmod(0o777)
    with pytest.raises(OperationalError, match="others may write there"):
        staging.tables()
    (tmp_path / "wh" / "_txpool").chmod(0o700)


@IN_SQLITE
def test_files_are_synced_before_anything_is_prepared(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    synced: set[str] = set()
    monkeypatch.setattr("txpool.lake.journals.folder.sync", lambda *paths: synced.update(map(str, paths)))
    before = lake.files()
    with txpool.transaction():
        lake.append("orders", 1)
    assert {each for each in lake.files() - before if not each.endswith(".journal")} <= synced
    made = lake.folder / "wh" / "db" / "orders"
    assert {str(made / "data"), str(made / "metadata"), str(made), str(made.parent), str(made.parent.parent)} <= synced


@IN_SQLITE
def test_a_thread_that_outlives_the_transaction_makes_nothing(lake: Lake) -> None:
    lake.create("orders")
    files = lake.files()
    with suppress(ZeroDivisionError), txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(rows(1))
        begun = table.io.new_output(f"{table.location()}/data/begun.parquet")
        1 / 0
    with pytest.raises(ProgrammingError, match="has ended"):
        begun.create()
    assert lake.files() == files


@IN_SQLITE
def test_a_line_that_the_disk_did_not_take_is_taken_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    files = lake.files()
    real = os.write
    with suppress(ZeroDivisionError), txpool.transaction():
        with monkeypatch.context() as patch:
            patch.setattr("txpool.lake.journals.folder.os.write", lambda file, text: real(file, text[:5]))
            with pytest.raises(OperationalError, match="journal could not be written"):
                lake.append("orders", 1)
        lake.append("orders", 2)
        assert lake.files() != files
        1 / 0
    assert lake.files() == files


@IN_SQLITE
def test_a_child_of_a_fork_removes_nothing(lake: Lake) -> None:
    lake.create("orders")
    with txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(rows(1))
        (task,) = table.scan().plan_files()
        if not (child := os.fork()):
            with suppress(BaseException):
                table.io.delete(task.file.file_path)
            os._exit(0)
        os.waitpid(child, 0)
    assert lake.ids("orders") == [1]
