"""What was told to be done already is there after a power loss, though who did it was killed before it was synced."""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.disk import calls
from tests.crash.disk.image import LOST, Disk
from tests.crash.disk.recording import Recording, Sync, SyncDirectory
from tests.crash.disk.vfs import FileSystem, file_system
from tests.crash.evidence import Count, Evidence
from txpool import AlreadyDone
from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture
def system(require: Require) -> FileSystem:
    system = file_system() if sys.platform == "linux" else None
    require(system is not None, "Linux, and a Python whose SQLite is a shared library")
    assert system is not None
    return system


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        root, attic = Path(folder) / "disk", Path(folder) / "attic"
        root.mkdir()
        attic.mkdir()
        yield Recording(root, attic)


@pytest.mark.parametrize("journal", ["wal", "delete", "truncate", "persist"])
def test_a_record_that_was_never_synced(
    system: FileSystem, recording: Recording, journal: str, evidence: Evidence
) -> None:
    url = f"sqlite:///{recording.root}/a.db"
    with system.recording(recording), calls.recording(recording):
        raw = sqlite3.connect(recording.root / "a.db", isolation_level=None)
        raw.execute(f"pragma journal_mode = {journal}")
        raw.execute("pragma synchronous = extra")
        raw.execute("create table t (n integer)")
        first = DataSource("first", driver="sqlite3", mode="cmr", url=url)
        second = DataSource("second", driver="sqlite3", mode="cmr", url=url)
        with closing(first.connect()) as connection:
            connection.execute(f"pragma journal_mode = {journal}")  # but for WAL it is each session's own
        for number in (1, 2):
            begun = len(recording.operations)
            with transaction(transaction_id=f"invoice-{number}", record_in=first):
                first.connect().cursor().execute("insert into t values (?)", [number])
        # Killed here, with its last sync to come: all that it wrote can be read, and may be lost.
        after = recording.operations[begun:]
        synced = [place for place, operation in enumerate(after, begun) if isinstance(operation, Sync | SyncDirectory)]
        if journal == "wal":  # a session's first sync of the log is followed by one of the folder, which is not needed
            synced = [place for place in synced if isinstance(recording.operations[place], Sync)]
        del recording.operations[synced[-1]]
        killed = len(recording.operations)
        with pytest.raises(AlreadyDone), transaction(transaction_id="invoice-2", record_in=second):
            pytest.fail("it was done already")
    for each in (raw, first, second):
        each.close()
    assert kept(recording, killed) == [1], "the kill was to come before the sync"
    assert kept(recording, len(recording.operations)) == [1, 2]
    evidence.add(Count.IMAGES, 2)


def kept(recording: Recording, operations: int) -> list[int]:
    """What is there after a power loss behind so many operations: the work, each with its record."""
    disk = Disk()
    for operation in recording.operations[:operations]:
        disk.apply(operation)
    folder = recording.root.parent / "image"
    disk.after(LOST).write(folder, recording.attic)
    with closing(sqlite3.connect(folder / "a.db")) as raw:
        numbers = [number for (number,) in raw.execute("select n from t order by n")]
        names = [name for (name,) in raw.execute("select transaction_id from txpool_spark_writes order by 1")]
    assert names == [f"invoice-{number}" for number in numbers]
    return numbers
