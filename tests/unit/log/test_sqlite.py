"""The folder of a sqlite log: what is refused, what is durable, and what a group of threads shares."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from txpool.errors import LogError
from txpool.log import IncarnationState, Refused, Resolution, SqliteLog, adopt_log
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

NODE = "etl-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(folder: Path) -> Iterator[SqliteLog]:
    log = SqliteLog(folder, node=NODE, create=True)
    yield log
    log.close()


def decide(log: SqliteLog, number: int = 1) -> str:
    gtrid = make_gtrid(NODE, log.incarnation, number)
    log.record(gtrid, [BranchRecord(make_xid(gtrid, 1, "orders"), "orders")])
    return gtrid


def wal_of(folder: Path) -> bytes:
    return (folder / "log.db-wal").read_bytes()


def test_17_a_missing_log_is_an_error_that_says_how_to_make_one(folder: Path) -> None:
    with pytest.raises(LogError, match=r"log\.db is missing.*log\.create = true"):
        SqliteLog(folder, node=NODE)
    assert not folder.exists()


def test_17_a_log_that_has_gone_from_its_folder_is_not_made_again(folder: Path, log: SqliteLog) -> None:
    decide(log)
    log.close()
    (folder / "log.db").unlink()
    with pytest.raises(LogError, match="missing where a decision log was"):
        SqliteLog(folder, node=NODE, create=True)


def test_17_an_empty_file_where_a_log_was_is_refused(folder: Path, log: SqliteLog) -> None:
    log.close()
    (folder / "log.db").write_bytes(b"")
    for create in (False, True):
        with pytest.raises(LogError, match="empty where a decision log was"):
            SqliteLog(folder, node=NODE, create=create)


def test_17_a_copy_is_refused_until_it_is_adopted_which_leaves_earlier_branches_alone(
    folder: Path, log: SqliteLog, tmp_path: Path
) -> None:
    gtrid = decide(log)
    log.finish(gtrid)
    log.close()
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    with pytest.raises(LogError, match=r"a copy or was moved: its inode differs .*--adopt"):
        SqliteLog(copied, node=NODE, create=True)

    adopt_log(f"sqlite:///{copied}", node="etl-2")
    adopted = SqliteLog(copied, node="etl-2")
    assert adopted.incarnations() == {}  # unknown incarnations are left alone
    assert adopted.finished() == set()
    assert set(adopted.decisions()) == {gtrid}  # evidence for the operator
    with pytest.raises(Refused):
        adopted.record(make_gtrid(NODE, gtrid.split(":")[2], 2), [])
    adopted.close()
    SqliteLog(folder, node=NODE).close()  # the original is as it was


def test_17_a_log_in_use_is_not_adopted(folder: Path, log: SqliteLog) -> None:
    name = log.incarnation
    with pytest.raises(LogError, match=f"in use by incarnation {name}"):
        adopt_log(f"sqlite:///{folder}", node="etl-2")
    assert log.incarnations() == {name: IncarnationState.ALIVE}


@pytest.mark.parametrize("name", ["device", "machine"])
def test_17_another_device_or_machine_than_recorded_is_refused(folder: Path, log: SqliteLog, name: str) -> None:
    log.close()
    database = sqlite3.connect(folder / "log.db")
    database.execute("UPDATE meta SET value = 'another' WHERE name = ?", (name,))
    database.commit()
    database.close()
    with pytest.raises(LogError, match=f"moved: its {name} differs "):
        SqliteLog(folder, node=NODE)


def test_a_log_of_another_format_is_refused(folder: Path, log: SqliteLog) -> None:
    log.close()
    database = sqlite3.connect(folder / "log.db")
    database.execute("UPDATE meta SET value = '2' WHERE name = 'format'")
    database.commit()
    database.close()
    with pytest.raises(LogError, match="has format 2"):
        SqliteLog(folder, node=NODE)


@pytest.mark.parametrize("at", [0, 4096, 8192 + 5], ids=["header", "schema", "page"])
def test_19_damage_refuses_to_start_and_names_the_file(folder: Path, log: SqliteLog, at: int) -> None:
    for number in range(50):
        decide(log, number)
    log.close()
    with (folder / "log.db").open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * 64)
    with pytest.raises(LogError, match=r"log\.db is damaged"):
        SqliteLog(folder, node=NODE)


CRASH = """
import os, signal, sys
from pathlib import Path
from txpool.log import SqliteLog
from txpool.xid import make_gtrid
log = SqliteLog(sys.argv[1], node="etl-1", create=True)
for number in range(int(sys.argv[2])):
    gtrid = make_gtrid("etl-1", log.incarnation, number)
    log.record(gtrid, [])
    print(gtrid, Path(sys.argv[1], "log.db-wal").stat().st_size, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(folder: Path, decisions: int) -> list[tuple[str, int]]:
    """A process decides so often and is killed; the gtrids, each with the write-ahead log's size after it."""
    command = [sys.executable, "-c", CRASH, str(folder), str(decisions)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
    return [(gtrid, int(size)) for gtrid, size in map(str.split, lines)]


def test_18_a_torn_tail_is_dropped_and_the_rest_is_kept(folder: Path) -> None:
    (first, _), (_, size) = crash(folder, 2)
    os.truncate(folder / "log.db-wal", size - 100)
    log = SqliteLog(folder, node=NODE)
    assert set(log.decisions()) == {first}
    log.close()


HOLD_THE_CHECKPOINT = """
import fcntl, sys
with open(sys.argv[1] + "/log.db-shm", "r+b") as shm:
    fcntl.lockf(shm, fcntl.LOCK_EX, 1, 121)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_checkpoint_of_another_process_is_no_damage(folder: Path) -> None:
    (first, _), (second, _) = crash(folder, 2)
    command = [sys.executable, "-c", HOLD_THE_CHECKPOINT, str(folder)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        sqlite3.connect(folder / "log.db") as reader,
        ThreadPoolExecutor(1) as thread,
    ):
        reader.execute("SELECT * FROM meta").fetchone()  # the first connection of all would write log.db-shm anew
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] == -1
        opening = thread.submit(SqliteLog, folder, node=NODE)
        with pytest.raises(TimeoutError):
            opening.result(0.2)
        other.communicate()
        log = opening.result()
    reader.close()
    assert set(log.decisions()) == {first, second}
    log.close()


def test_19_damage_in_the_middle_of_the_write_ahead_log_refuses_to_start(folder: Path) -> None:
    (first, size), *_ = crash(folder, 5)
    with (folder / "log.db-wal").open("r+b") as file:
        file.seek(size + 2000)
        file.write(b"\xa5" * 64)
    for _ in range(2):  # the refusal lasts, and so does the evidence
        with pytest.raises(LogError, match="damaged in the middle"):
            SqliteLog(folder, node=NODE)
    (folder / "log.db-wal.damaged").unlink()
    log = SqliteLog(folder, node=NODE)
    assert set(log.decisions()) == {first}
    log.close()


def test_the_folder_and_its_files_are_their_owners_alone(folder: Path, log: SqliteLog) -> None:
    decide(log)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "incarnations").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("log.db*")} == {0o600}


def test_the_log_is_durable_with_each_commit(log: SqliteLog) -> None:
    def settings(db: sqlite3.Connection) -> list[object]:
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert log._group.write(settings) == ["wal", 2]


def grows(folder: Path, act: Callable[[], object]) -> bool:
    before = wal_of(folder)
    act()
    return wal_of(folder) != before


def test_18_23_24_whoever_meets_what_was_written_writes_it_again(folder: Path, log: SqliteLog) -> None:
    gtrid = decide(log)
    name = log.incarnation
    assert grows(folder, lambda: log.abort(gtrid))
    log.finish(gtrid)
    assert grows(folder, lambda: log.finish(gtrid))
    log.point(gtrid_p := make_gtrid(NODE, name, 2), "ledger")
    assert grows(folder, lambda: log.point(gtrid_p, "ledger"))
    log.fence(name)
    assert grows(folder, lambda: log.fence(name))


def test_forgetting_costs_no_transaction_of_its_own(folder: Path, log: SqliteLog) -> None:
    first = decide(log, 1)
    before = log.commits
    log.forget(first)
    assert log.commits == before
    second = decide(log, 2)
    assert log.commits == before + 1
    assert set(log.decisions()) == {second}


def test_a_thousand_waiting_forgets_get_a_transaction(log: SqliteLog) -> None:
    first = decide(log, 1)
    before = log.commits
    for _ in range(1000):
        log.forget(first)
    assert log.commits == before + 1
    assert log.decisions() == {}


def test_threads_that_decide_at_the_same_time_share_one_fsync(folder: Path, log: SqliteLog) -> None:
    name = log.incarnation
    gtrids = [make_gtrid(NODE, name, number) for number in range(8)]
    blocker = sqlite3.connect(folder / "log.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # the first of them waits for the database, the others for it
    threads = [threading.Thread(target=log.record, args=(gtrid, [])) for gtrid in gtrids]
    before = log.commits
    for thread in threads:
        thread.start()
    while len(log._group._queue) < 8:
        threading.Event().wait(0.005)
    blocker.execute("ROLLBACK")
    blocker.close()
    for thread in threads:
        thread.join()
    assert set(log.decisions()) == set(gtrids)
    assert log.commits == before + 1


def test_every_one_of_many_threads_gets_its_own_answer(log: SqliteLog) -> None:
    name = log.incarnation
    refused: list[str] = []
    decided: list[str] = []

    def work(thread: int) -> None:
        for number in range(25):
            gtrid = make_gtrid(NODE, name, thread * 100 + number)
            if number % 5 == 0:
                log.abort(gtrid)
            try:
                log.record(gtrid, [])
                decided.append(gtrid)
            except Refused:
                refused.append(gtrid)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) == log.aborted()
    assert set(decided) == set(log.decisions())
    assert (len(refused), len(decided)) == (40, 160)


def test_20_a_failure_before_the_commit_is_a_definite_refusal_and_the_log_goes_on(log: SqliteLog) -> None:
    decide(log, 1)
    gtrid = make_gtrid(NODE, log.incarnation, 2)
    pages = log._group.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    log._group.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    big = [BranchRecord(make_xid(gtrid, 1, "orders"), "orders", "x" * 100_000)]
    with pytest.raises(Refused, match=f"{gtrid}.*full"):
        log.record(gtrid, big)
    assert gtrid not in log.decisions()
    log.record(gtrid, big)
    assert gtrid in log.decisions()


def test_a_busy_log_refuses_before_anything_is_written(folder: Path, log: SqliteLog) -> None:
    gtrid = make_gtrid(NODE, log.incarnation, 1)
    log._group.write(lambda db: db.execute("PRAGMA busy_timeout = 1").fetchone())
    blocker = sqlite3.connect(folder / "log.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refused, match="locked"):
        log.record(gtrid, [])
    blocker.execute("ROLLBACK")
    blocker.close()
    assert log.abort(gtrid) is Resolution.ABORTED


@pytest.mark.parametrize("text", ["[[1", '[["1:one:L","one","7/5","771"]]', '[["1:one:L","one",75,{}]]', "[7]"])
def test_a_damaged_record_stops_the_reader(folder: Path, log: SqliteLog, text: str) -> None:
    gtrid = decide(log)
    database = sqlite3.connect(folder / "log.db")
    database.execute("UPDATE decisions SET branches = ?", (text,))
    database.commit()
    database.close()
    with pytest.raises(LogError, match=f"{gtrid} is damaged"):
        log.decisions()


def test_a_closed_log_says_so(log: SqliteLog) -> None:
    log.close()
    log.close()
    with pytest.raises(LogError, match="was closed"):
        log.decisions()
    with pytest.raises(LogError, match="was closed"):
        assert log.incarnation


def test_a_log_that_was_moved_away_while_in_use_decides_nothing_more(folder: Path, log: SqliteLog) -> None:
    first, second = decide(log, 1), decide(log, 2)
    away = folder.rename(folder.with_name("away"))
    third = make_gtrid(NODE, log.incarnation, 3)
    log.forget(first)
    with pytest.raises(Refused, match=r"was not decided, and rolls back.*is missing"):
        log.record(third, [])
    with pytest.raises(LogError, match="no incarnation can be registered"):
        _ = log.incarnation
    shutil.copytree(away, folder)
    with pytest.raises(LogError, match="is a copy or was moved"):
        _ = log.incarnation
    shutil.rmtree(folder)
    away.rename(folder)
    fourth = decide(log, 4)
    assert log.decisions().keys() == {second, fourth}


def test_the_lock_file_of_a_fenced_incarnation_is_removed(folder: Path, log: SqliteLog) -> None:
    name = log.incarnation
    assert [path.stem for path in (folder / "incarnations").iterdir()] == [name]
    log.fence(name)
    assert list((folder / "incarnations").iterdir()) == []
    assert log.incarnations() == {name: IncarnationState.FENCED}


def test_an_incarnation_whose_lock_file_is_lost_is_dead(folder: Path, log: SqliteLog) -> None:
    name = log.incarnation
    (folder / "incarnations" / f"{name}.lock").unlink()
    assert log.incarnations() == {name: IncarnationState.DEAD}


def test_processes_that_create_one_log_at_the_same_time_make_one(folder: Path) -> None:
    logs: list[SqliteLog] = []
    threads = [
        threading.Thread(target=lambda: logs.append(SqliteLog(folder, node=NODE, create=True))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gtrid = decide(logs[0])
    assert [set(log.decisions()) for log in logs] == [{gtrid}] * 4
    assert sorted(path.name for path in folder.glob("log*")) == ["log.db", "log.db-shm", "log.db-wal"]
    for log in logs:
        log.close()
