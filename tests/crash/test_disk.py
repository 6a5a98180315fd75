"""The sqlite log on a disk that loses what was not synced, and whose every operation may fail.

`TXPOOL_CRASH_FULL=1` crashes after every operation and lets every operation fail; otherwise some are chosen, by a seed
that is printed: `TXPOOL_CRASH_SEED` chooses the same again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.crash.disk.image import KILLED, LOSSES, LOST, Loss
from tests.crash.disk.recording import KINDS, Entries, Fault, Sync, SyncDirectory, Write
from tests.crash.disk.verdict import CrashChecker
from tests.crash.disk.vfs import file_system
from tests.crash.disk.work import LogRun
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.mutating import Edit, applied
from tests.support.sampling import FULL
from txpool.log.sqlite.folder import LogFolder

if TYPE_CHECKING:
    from tests.conftest import Require

SOME = tuple(Loss("some is lost, some torn", seed=str(n)) for n in range(8 if FULL else 2))


@pytest.fixture
def checker(
    require: Require, tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CrashChecker]:
    """In memory where there is such a folder: what a disk keeps is reckoned here, and needs none."""
    # Images keep a file's number by a second name, which stands for no second log.
    monkeypatch.setattr(LogFolder, "_require_one_name", lambda _: None)
    system = file_system() if sys.platform == "linux" else None
    require(system is not None, "Linux, and a Python whose SQLite is a shared library")
    assert system is not None
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        checker = CrashChecker(system, Path(folder))
        yield checker
        print(f"seed {SEED}: {checker.counts}")
        evidence.add(Count.IO_FAULTS, checker.counts.faults)
        evidence.add(Count.IMAGES, checker.counts.images)


@pytest.fixture
def random() -> Random:
    return Random(SEED)


def some(positions: range, count: int, random: Random) -> Collection[int]:
    """So many of them, or all in a full run."""
    return positions if FULL or len(positions) <= count else random.sample(positions, count)


def assert_none(problems: list[str]) -> None:
    assert not problems, f"seed {SEED}\n" + "\n".join(problems)


def test_what_a_life_of_the_log_does(checker: CrashChecker) -> None:
    """What the other tests crash is worth it: shared syncs, checkpoints, write-ahead logs that begin anew."""
    run = checker.run()
    assert_none(run.history.problems)
    calls = [call for call in run.history.calls if call.name != "forget"]
    unexpected = [str(call) for call in calls if call.outcome != "yes"]
    assert len(unexpected) == 2, unexpected  # decisions of an aborted gtrid, and of a fenced incarnation
    decided = [call for call in calls if call.name == "record" and call.outcome == "yes"]
    assert len({call.returned for call in decided}) < len(decided), "threads that decide together share a sync"

    operations = run.recording.operations
    made = next(call.returned for call in calls if call.name == "create")
    log = os.stat(run.recording.root / "txlog" / "log.db").st_ino
    restarts = {op.file for op in operations[made:] if isinstance(op, Write) and op.offset == 0 and op.file != log}
    assert any(isinstance(op, Write) and op.file == log for op in operations[made:]), "a checkpoint"
    assert sum(isinstance(op, Write) and op.offset == 0 for op in operations[made:]) > len(restarts) > 1
    assert any(isinstance(op, Sync) and op.file == log for op in operations[made:])
    assert {op.path for op in operations if isinstance(op, SyncDirectory)} == {"", "txlog"}


@pytest.mark.costly
def test_after_any_crash_every_promise_holds(checker: CrashChecker, random: Random) -> None:
    run = checker.run()
    positions = some(range(len(run.recording.operations) + 1), 150, random)
    assert_none(checker.check(run, positions, (*LOSSES, *SOME), SEED))


@pytest.mark.costly
def test_after_a_crash_of_recovery_what_it_has_answered_holds(checker: CrashChecker, random: Random) -> None:
    """Also where it follows a kill, and what it has read was never synced."""
    run = checker.run()
    for position in some(range(made(run), len(run.recording.operations) + 1), 15, random):
        for loss in (KILLED, LOST):
            assert_none(checker.check_recovery(run, position, loss, f"{SEED}.{position}", every=2 if FULL else 5))


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_operation_fails_what_is_told_is_true(checker: CrashChecker, random: Random, kind: str) -> None:
    for run in runs_with_fault(checker, kind, 6, random):
        first, last = run.recording.failed_at or 0, len(run.recording.operations)
        near = range(first, min(last, first + 60))
        positions = {first + 1, last, *random.sample(near, min(len(near), 10 if FULL else 3))}
        assert_none(checker.check(run, positions, (KILLED, LOST, SOME[0]), f"{SEED}.{run.recording.fault}"))
    assert checker.counts.faults


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"ENOSPC that lasts"}))
def test_a_log_whose_creation_fails_can_be_made(checker: CrashChecker, random: Random, kind: str) -> None:
    for run in runs_with_fault(checker, kind, 12, random, short=True):
        assert_none(run.history.problems)
        assert run.history.calls[-1].name in ("record", "abort", "register"), "a decision was tried"


def test_what_a_full_disk_has_left_is_no_damage(checker: CrashChecker) -> None:
    """The end of a transaction that failed lies behind what has overwritten its beginning, and then comes a crash."""
    whole = checker.run()
    group = max(call.returned or 0 for call in whole.history.calls[:9] if call.name == "record")
    until = _grown(whole, group)
    problems = []
    for nth in range(until - 4, until + 1):
        run = checker.run(Fault("ENOSPC that lasts", nth))
        first = run.recording.failed_at or 0
        problems += checker.check(run, range(first, min(first + 12, len(run.recording.operations))), (KILLED,), SEED)
    assert_none(problems)


def _grown(run: LogRun, position: int) -> int:
    """How many operations before it want room."""
    return sum(
        isinstance(op, Write) or (isinstance(op, Entries) and None not in op.change.values())
        for op in run.recording.operations[:position]
    )


def made(run: LogRun) -> int:
    """The position at which the log was there."""
    return next(c.returned or 0 for c in run.history.calls if c.name == "create" and c.outcome == "yes")


def runs_with_fault(
    checker: CrashChecker, kind: str, count: int, random: Random, *, short: bool = False
) -> Iterator[LogRun]:
    """Runs in each of which another operation fails: so many, or all."""
    counts = checker.run(short=short).recording.counts
    for nth in some(range(1, sum(counts[operation] for operation in KINDS[kind]) + 1), count, random):
        run = checker.run(Fault(kind, nth), short=short)
        if run.recording.failed_at is not None:  # a run is not always of the same length
            yield run


def by_crashes(checker: CrashChecker, random: Random) -> Iterator[list[str]]:
    run = checker.run()
    yield checker.check(run, range(made(run), len(run.recording.operations), 9), (LOST,), SEED)


def by_failing(kind: str) -> Callable[[CrashChecker, Random], Iterator[list[str]]]:
    def check(checker: CrashChecker, random: Random) -> Iterator[list[str]]:
        for run in runs_with_fault(checker, kind, 80, random):
            yield checker.check(run, [(run.recording.failed_at or 0) + 1, len(run.recording.operations)], (LOST,), SEED)

    return check


_FOLDER = "txpool.log.sqlite.folder:"
_GROUP = "txpool.log.sqlite.group:GroupCommit."
#: What is left out, and what must turn red then.
MUTATIONS = {
    "no fsync": (Edit(_FOLDER + "_make_durable", "= FULL", "= OFF"), by_crashes),
    "no fsync of a commit": (Edit(_FOLDER + "_make_durable", "= FULL", "= NORMAL"), by_crashes),
    "no fsync of directories": (Edit("txpool.process.durable:sync", "os.fsync(descriptor)", "pass"), by_crashes),
    "no fsync of the directory above": (
        Edit(_FOLDER + "LogFolder.create", "sync(self.path, self.path.parent)", "sync(self.path)"),
        by_crashes,
    ),
    "SQLite's fsync of its directory is trusted": (
        Edit(_FOLDER + "LogFolder.connect", "sync(self.path)", "pass"),
        by_failing("EIO on a directory's fsync"),
    ),
    "a failed fsync does not poison": (
        Edit(_GROUP + "_certain_failure", "self.poison = f", "_ = f"),
        by_failing("EIO on fsync"),
    ),
    "a failed fsync is a definite no": (
        Edit(_GROUP + "_certain_failure", "return LogUnknown", "return LogError"),
        by_failing("EIO on fsync, but synced"),
    ),
}


@pytest.mark.parametrize("left_out", MUTATIONS)
def test_what_is_left_out_is_found(checker: CrashChecker, random: Random, left_out: str) -> None:
    edit, check = MUTATIONS[left_out]
    with applied([edit]):
        found = next((problems for problems in check(checker, random) if problems), None)
    assert found, f"nothing was found without it, by seed {SEED}"
    print("\n".join(found))
