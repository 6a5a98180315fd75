"""The sqlite log and its processes: kills, fences, forks, and disks that fail, each in processes of their own."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.children import Child, children, finished, said, tell
from txpool.log import IncarnationState, Resolution, SqliteLog
from txpool.xid import make_gtrid

NODE = "etl-1"
PROLOGUE = """
import os, resource, signal, sys, threading
from pathlib import Path
from txpool.errors import LogError, LogUnknown
from txpool.log import IncarnationState, Refused, Resolution, SqliteLog
from txpool.xid import make_gtrid
folder = Path(sys.argv[1])
log = SqliteLog(folder, node="etl-1", create=True)
def gtrid_of(number):
    return make_gtrid("etl-1", log.incarnation, number)
def decide(number):
    gtrid = gtrid_of(number)
    log.record(gtrid, [])
    return gtrid
"""

Spawn = Callable[[str], Child]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(folder: Path) -> Iterator[SqliteLog]:
    log = SqliteLog(folder, node=NODE, create=True)
    yield log
    log.close()


@pytest.fixture
def spawn(folder: Path) -> Iterator[Spawn]:
    """Start a process of the same node over the same log."""
    with children(PROLOGUE, "\nlog.close()\n") as start:
        yield lambda source: start(source, str(folder))


def test_a_killed_process_is_seen_dead_and_is_fenced(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("say(log.incarnation, decide(1)); heard()")
    name, gtrid = said(process)
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert log.incarnations() == {name: IncarnationState.DEAD}
    log.fence(name)
    assert log.incarnations() == {name: IncarnationState.FENCED}
    assert set(log.decisions()) == {gtrid}


def test_11_the_late_decision_of_a_process_that_another_fenced_is_refused(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        gtrid = gtrid_of(1)
        say(log.incarnation, gtrid); heard()
        try:
            log.record(gtrid, [])
        except Refused:
            say("refused", log.abort(gtrid).name, log.is_fenced(gtrid.split(":")[2]), log.incarnation, decide(2))
    """)
    name, gtrid = said(process)
    process.send_signal(signal.SIGSTOP)
    assert log.incarnations() == {name: IncarnationState.ALIVE}  # a stopped process keeps its lock
    log.fence(name)
    process.send_signal(signal.SIGCONT)
    tell(process, "go")
    refused, settled, fenced, again, later = finished(process)
    assert (refused, settled, fenced) == ("refused", "ABORTED", "True")
    assert again != name
    assert log.aborted() == {gtrid}
    assert set(log.decisions()) == {later}


def test_two_processes_decide_and_abort_the_same_gtrids_and_agree(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        say(log.incarnation); heard()
        for number in range(200):
            try:
                say(decide(number))
            except Refused:
                pass
    """)
    (name,) = said(process)
    tell(process, "go")
    settled = {gtrid: log.abort(gtrid) for gtrid in (make_gtrid(NODE, name, number) for number in range(199, -1, -1))}
    decided = set(finished(process))
    assert decided == set(log.decisions())
    assert {gtrid for gtrid, how in settled.items() if how is Resolution.ABORTED} == log.aborted()
    assert decided | log.aborted() == set(settled)


POISONED = """
gtrid, old = gtrid_of(2), log.incarnation
try:
    log.record(gtrid, [])
except LogUnknown:
    say("unknown")
try:
    log.record(gtrid_of_old(3), [])
except Refused as error:
    say("refused" if "outcome is unknown" in str(error) else error)
restore()
say(log.abort(gtrid).name, log.is_fenced(old))
assert log.incarnation != old
say(log.is_fenced(old))
try:
    log.record(make_gtrid("etl-1", old, 4), [])
except Refused:
    say("refused")
say(decide(5))
"""


def check_poison(process: Child, log: SqliteLog) -> None:
    """The log was read here before: an open connection keeps the child's from being the last, which cleans up."""
    first, *words, last = finished(process)
    assert words == ["unknown", "refused", "ABORTED", "False", "True", "refused"]
    assert set(log.decisions()) == {first, last}
    assert sorted(log.incarnations().values(), key=str) == [IncarnationState.DEAD, IncarnationState.FENCED]


def test_4_a_write_that_fails_at_commit_is_unknown_and_poisons_the_log(spawn: Spawn, log: SqliteLog) -> None:
    """The file may not grow: an input/output error (EFBIG) out of the write-ahead log's own write."""
    setup = """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        say(decide(1))
        old_name = log.incarnation
        def gtrid_of_old(number): return make_gtrid("etl-1", old_name, number)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        def restore(): resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "log.db-wal").stat().st_size + 1000, unlimited[1]))
    """
    assert log.incarnations() == {}
    check_poison(spawn(textwrap.dedent(setup) + POISONED), log)


REPLACE_WAL = """
say(decide(1))
old_name = log.incarnation
def gtrid_of_old(number): return make_gtrid("etl-1", old_name, number)
def restore(): pass
for link in Path("/proc/self/fd").iterdir():
    if link.exists() and os.readlink(link) == str(folder / "log.db-wal"):
        os.dup2(os.open(DEVICE, os.O_RDWR), int(link.name))
"""


def test_4_a_failed_sync_is_unknown_and_poisons_the_log(spawn: Spawn, log: SqliteLog) -> None:
    """The write-ahead log is /dev/null, which takes every write and fails the sync."""
    assert log.incarnations() == {}
    check_poison(spawn('DEVICE = "/dev/null"\n' + REPLACE_WAL + POISONED), log)


def test_20_a_full_disk_is_a_definite_refusal_and_room_is_kept_for_recovery(spawn: Spawn, log: SqliteLog) -> None:
    """The write-ahead log is /dev/full: ENOSPC at COMMIT. Then a limit keeps the reserve from being made again."""
    assert log.incarnations() == {}
    full = """
        old = log.incarnation
        def refusal(number):
            try:
                log.record(gtrid_of(number), [])
            except Refused as error:
                return "full" in str(error)
        say(refusal(2), (folder / "reserve").exists())
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, unlimited[1]))
        say(refusal(3))
        log.finish(gtrid_of(1))
        say(log.abort(gtrid_of(2)).name)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        say(log.incarnation == old, decide(4), (folder / "reserve").exists())
    """
    process = spawn('DEVICE = "/dev/full"\n' + REPLACE_WAL + textwrap.dedent(full))
    first, *words, last, again = finished(process)
    assert words == ["True", "False", "True", "ABORTED", "True"]
    assert again == "True"
    assert set(log.decisions()) == {first, last}
    assert log.finished() == {first}


def test_39_a_forked_child_leaves_its_parents_lock_and_takes_a_name_of_its_own(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        parent = log.incarnation
        gtrid = decide(1)
        child = os.fork()
        if child == 0:
            say("child", log.incarnation, decide(2), log.incarnations()[parent].name)
            heard()
            os._exit(0)
        say("parent", parent, decide(3))
        signal.pause()
    """)
    spoken = {words[0]: words[1:] for words in (said(process), said(process))}
    (parent, third), (child, second, life) = spoken["parent"], spoken["child"]
    assert life == "ALIVE"
    assert parent != child
    assert log.incarnations() == {parent: IncarnationState.ALIVE, child: IncarnationState.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert log.incarnations() == {
        parent: IncarnationState.DEAD,
        child: IncarnationState.ALIVE,
    }  # though the child outlives it
    assert {second, third} < set(log.decisions())
    tell(process, "go")


def test_39_the_childs_end_does_not_free_the_parents_lock(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        say(log.incarnation)
        child = os.fork()
        if child == 0:
            log.close()
            os._exit(0)
        os.waitpid(child, 0)
        say("gone"); heard()
    """)
    (name,) = said(process)
    assert said(process) == ["gone"]
    assert log.incarnations() == {name: IncarnationState.ALIVE}


def test_what_a_forked_child_decides_is_not_lost_when_all_others_have_gone(spawn: Spawn, folder: Path) -> None:
    """Whoever closes the last connection removes the write-ahead log: the child's has to count as one."""
    process = spawn("""
        decide(1)
        child = os.fork()
        if child == 0:
            say(decide(2)); heard()
            say(decide(3)); heard()
            os._exit(0)
        signal.pause()
    """)
    second = said(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    SqliteLog(folder, node=NODE).close()
    tell(process, "go")
    third = said(process)
    log = SqliteLog(folder, node=NODE)
    assert {*second, *third} < set(log.decisions())
    log.close()


def test_a_fork_in_the_midst_of_other_threads_decisions_harms_neither_side(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        name, stop, decided = log.incarnation, threading.Event(), []
        def work(thread):
            number = thread * 10000
            while not stop.is_set():
                gtrid = make_gtrid("etl-1", name, number)
                log.record(gtrid, [])
                decided.append(gtrid)
                number += 1
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads: thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                log.record(gtrid_of(1), [])
                log.forget(gtrid_of(1))
                log.close()
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        for thread in threads: thread.join()
        assert codes == [0] * 5, codes
        say(*decided)
    """)
    decided = finished(process)
    assert len(decided) == len(set(decided)) > 0
    assert set(decided) == set(log.decisions())
    assert len(log.incarnations()) == 6


def test_a_child_that_was_forked_in_the_middle_of_a_write_cannot_use_the_log(spawn: Spawn, log: SqliteLog) -> None:
    process = spawn("""
        from txpool.log import forks
        forks.WAIT = 0.1
        writing, end = threading.Event(), threading.Event()
        def hold(db):
            writing.set()
            end.wait()
        thread = threading.Thread(target=log._group.write, args=(hold,))
        thread.start()
        writing.wait()
        child = os.fork()
        if child == 0:
            try:
                log.decisions()
            except LogError as error:
                os._exit(7 if "forked in the middle" in str(error) else 8)
            os._exit(9)
        end.set()
        thread.join()
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), decide(1))
    """)
    code, gtrid = finished(process)
    assert code == "7"
    assert set(log.decisions()) == {gtrid}


def test_an_interrupted_follower_raises_the_interrupt_and_the_others_are_answered(spawn: Spawn, log: SqliteLog) -> None:
    """The main thread waits behind a leader that waits for us; SIGINT reaches it there."""
    gtrid = make_gtrid(NODE, log.incarnation, 1)
    process = spawn("""
        other = threading.Thread(target=lambda: decide(2))
        say(gtrid_of(1)); heard()
        other.start()
        while not log._group._write_lock.locked(): pass
        try:
            say("leading")
            log.record(gtrid_of(1), [])
        except KeyboardInterrupt:
            say("interrupted")
        heard()
        other.join()
        say(log.abort(gtrid_of(1)).name, decide(3))
    """)
    (interrupted,) = said(process)

    def hold(db: object) -> None:
        tell(process, "go")
        assert said(process) == ["leading"]
        process.send_signal(signal.SIGINT)
        assert said(process) == ["interrupted"]

    log._group.write(hold)
    tell(process, "go")
    settled, third = finished(process)
    assert settled == "ABORTED"
    assert log.aborted() == {interrupted}
    assert third in log.decisions()
    log.record(gtrid, [])
    assert len(log.decisions()) == 3
