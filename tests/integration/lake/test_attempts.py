"""What Spark's tasks leave in a warehouse: the files of the attempts that are published stay, and no others."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files

import txpool
from tests.integration.lake.conftest import IN_SQLITE, Lake, rows
from txpool.errors import ConfigurationError, OperationalError
from txpool.lake.journals.files import AttemptFiles, JournaledFileIO
from txpool.lake.journals.folder import Journals
from txpool.lake.warehouse import LakeStaging, Warehouse
from txpool.lake.work import LakeWork

pytestmark = IN_SQLITE


def journals_of(lake: Lake) -> Journals:
    return Warehouse(lake.source.settings).journals


def attempt(lake: Lake, gtrid: str, numbers: str, *ids: int) -> list[Any]:
    """What an attempt makes, and would report to the driver."""
    journals = journals_of(lake)
    with journals.attempt(gtrid, numbers) as journal:
        table = _table(lake)
        return list(
            _dataframe_to_data_files(table.metadata, rows(*ids), JournaledFileIO(AttemptFiles(journals, journal)))
        )


def _table(lake: Lake) -> Any:
    return lake.catalog.load_table("db.orders")


def write(lake: Lake, *, lost: bool = True) -> str:
    """Within a transaction: attempts 1 and 3 are published, attempt 2 is lost."""
    transaction = txpool.current()
    assert transaction is not None
    changes = _table(lake).transaction()
    files = attempt(lake, transaction.gtrid, "0.0.1", 1)
    if lost:
        attempt(lake, transaction.gtrid, "0.1.2", 2)
    files += attempt(lake, transaction.gtrid, "0.1.3", 2)
    changes.publish(files, overwrite=False)
    changes.commit_transaction()
    gtrid: str = transaction.gtrid
    return gtrid


def ended(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, commit: bool) -> str:
    """The same by a process that does nothing after the end, as if it were dead; its gtrid."""
    with monkeypatch.context() as patch:
        patch.setattr(LakeWork, "_after", lambda self, status: None)
        with suppress(ZeroDivisionError), txpool.transaction():
            gtrid = write(lake)
            if not commit:
                1 / 0
    return gtrid


def data_files(lake: Lake) -> list[str]:
    return [each for each in lake.files() if each.endswith(".parquet")]


def swept(lake: Lake) -> LakeStaging:
    staging = LakeStaging(lake.source.settings, 1.0)
    for each in staging.tables():
        staging.drop(each)
    return staging


def require_whole(lake: Lake, *, commit: bool) -> None:
    assert lake.ids("orders") == ([1, 2] if commit else [])
    assert len(data_files(lake)) == (2 if commit else 0)
    assert not [each for each in lake.files() if "_txpool" in each]
    assert lake.rows() == 0


@pytest.mark.parametrize("commit", [True, False])
def test_lost_attempts_go_with_the_transaction(lake: Lake, commit: bool) -> None:
    lake.create("orders")
    with suppress(ZeroDivisionError), txpool.transaction():
        write(lake)
        assert len(data_files(lake)) == 3
        if not commit:
            1 / 0
    require_whole(lake, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
def test_recovery_removes_what_nobody_has_published(lake: Lake, monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    lake.create("orders")
    gtrid = ended(lake, monkeypatch, commit=commit)
    assert [each.gtrid for each in LakeStaging(lake.source.settings, 1.0).tables()] == [gtrid]
    assert swept(lake).tables() == []
    require_whole(lake, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
def test_a_sweep_that_dies_at_any_step_is_gone_on_with(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    lake.create("orders")
    real, count = Path.unlink, [0]
    for step in range(1, 5):
        with monkeypatch.context() as patch:
            ended(lake, monkeypatch, commit=commit)
            count[0] = 0

            def dying(self: Path, *arguments: Any, _step: int = step, **options: Any) -> None:
                count[0] += self.suffix in (".attempt", ".journal")
                if count[0] == _step:
                    raise KeyboardInterrupt
                real(self, *arguments, **options)

            patch.setattr(Path, "unlink", dying)
            with pytest.raises(KeyboardInterrupt):
                swept(lake)
        assert swept(lake).tables() == []
        found = lake.ids("orders")
        assert found == ([1] * step + [2] * step if commit else [])
        assert len(data_files(lake)) == len(found)
        assert (lake.rows(), [each for each in lake.files() if "_txpool" in each]) == (0, [])


def test_nothing_goes_while_a_task_still_writes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(LakeWork, "_after", lambda self, status: None)
        with txpool.transaction():
            gtrid = write(lake, lost=False)
            journal = stack.enter_context(journals_of(lake).attempt(gtrid, "0.1.2"))
        late = Path(lake.folder, "wh", "db", "orders", "data", "late.parquet")
        for _ in range(2):
            with pytest.raises(OperationalError, match="still writes files for"):
                swept(lake)
        journals_of(lake).list_new(journal, str(late))
        late.touch()
    assert swept(lake).tables() == []
    assert not late.exists()
    require_whole(lake, commit=True)


def test_an_attempt_that_comes_after_all_is_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("orders")
    real = Journals.path_of
    with txpool.transaction():
        gtrid = write(lake)
    with pytest.raises(OperationalError, match="has ended"):
        attempt(lake, gtrid, "0.1.7", 5)
    with monkeypatch.context() as patch:  # it has looked just before the journal went
        patch.setattr(Journals, "path_of", lambda self, _: Path(self.root))
        with txpool.transaction():
            attempt(lake, gtrid, "0.1.8", 5)
    assert Journals.path_of is real
    assert len(data_files(lake)) == 3
    assert swept(lake).tables() == []
    require_whole(lake, commit=True)


def test_a_file_that_the_driver_does_not_see_is_refused(lake: Lake) -> None:
    lake.create("orders")
    with pytest.raises(OperationalError, match="is not there, or not whole"), txpool.transaction() as transaction:
        changes = _table(lake).transaction()
        files = attempt(lake, transaction.gtrid, "0.0.1", 1)
        Path(files[0].file_path).write_bytes(b"half")
        changes.publish(files, overwrite=False)
    assert (lake.ids("orders"), data_files(lake)) == ([], [])


def test_forged_attempts_remove_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake.create("orders")
    gtrid = ended(lake, monkeypatch, commit=True)
    outside, folder = tmp_path / "outside", journals_of(lake).folder
    outside.write_text("kept")
    kept = data_files(lake)
    forged = folder / f"{gtrid.replace(':', '+')}.0.0.9.attempt"
    for text in (
        f"txpool lake journal 1 {gtrid}.0.0.8\n",
        f'txpool lake journal 1 {gtrid}.0.0.9\n"../outside"\n',
        f'txpool lake journal 1 {gtrid}.0.0.9\n"_txpool/identity"\n',
    ):
        forged.write_text(text)
        with pytest.raises((OperationalError, ConfigurationError)):
            swept(lake)
        assert outside.read_text() == "kept"
    forged.unlink()
    forged.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        swept(lake)
    forged.unlink()
    (folder / f"{gtrid.replace(':', '+')}.attempt").touch()  # no name of an attempt, and nobody's gtrid
    (folder / "x.y.z.attempt").touch()
    assert swept(lake).tables() == []
    assert outside.read_text() == "kept"
    assert len(kept) - len(data_files(lake)) == 1


def test_a_thread_that_outlives_its_attempt_makes_nothing(lake: Lake, tmp_path: Path) -> None:
    """pyiceberg writes with threads: one that fails ends the attempt, and the others go on."""
    lake.create("orders")
    with txpool.transaction() as transaction:
        _table(lake).transaction().commit_transaction()
        journals, data = journals_of(lake), f"{lake.folder}/wh/db/orders/data"
        with journals.attempt(transaction.gtrid, "0.0.1") as journal, closing(AttemptFiles(journals, journal)) as files:
            begun = JournaledFileIO(files).new_output(f"{data}/begun.parquet")
            number = journal.fileno()
        with ExitStack() as stack:  # the descriptor's number is another file's
            while (stack.enter_context((tmp_path / "other").open("wb"))).fileno() < number:
                pass
            with pytest.raises(OperationalError, match="has ended, and makes no files"):
                JournaledFileIO(files).new_output(f"{data}/more.parquet")
        assert (tmp_path / "other").read_bytes() == b""
        with pytest.raises(OperationalError, match="has ended, and makes no files"):
            begun.create()
    assert data_files(lake) == []
