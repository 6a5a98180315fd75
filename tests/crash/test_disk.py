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
from tests.crash.disk.verdict import Bench
from tests.crash.disk.vfs import file_system
from tests.crash.disk.work import Life
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.mutating import Edit, applied

if TYPE_CHECKING:
    from tests.conftest import Require

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
SOME = tuple(Loss("some is lost, some torn", seed=str(n)) for n in range(8 if FULL else 2))


@pytest.fixture
def bench(require: Require, tmp_path: Path, evidence: Evidence) -> Iterator[Bench]:
    """In memory where there is such a folder: what a disk keeps is reckoned here, and needs none."""
    system = file_system() if sys.platform == "linux" else None
    require(system is not None, "Linux, and a Python whose SQLite is a shared library")
    assert system is not None
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        bench = Bench(system, Path(folder))
        yield bench
        print(f"seed {SEED}: {bench.tally}")
        evidence.add(Count.IO_FAULTS, bench.tally.faults)
        evidence.add(Count.IMAGES, bench.tally.images)


@pytest.fixture
def random() -> Random:
    return Random(SEED)


def some(positions: range, count: int, random: Random) -> Collection[int]:
    """So many of them, or all in a full run."""
    return positions if FULL or len(positions) <= count else random.sample(positions, count)


def assert_none(problems: list[str]) -> None:
    assert not problems, f"seed {SEED}\n" + "\n".join(problems)


def test_what_a_life_of_the_log_does(bench: Bench) -> None:
    """What the other tests crash is worth it: shared syncs, checkpoints, write-ahead logs that begin anew."""
    life = bench.live()
    assert_none(life.history.problems)
    calls = [call for call in life.history.calls if call.name != "forget"]
    unexpected = [str(call) for call in calls if call.outcome != "yes"]
    assert len(unexpected) == 2, unexpected  # decisions of an aborted gtrid, and of a fenced incarnation
    decided = [call for call in calls if call.name == "record" and call.outcome == "yes"]
    assert len({call.returned for call in decided}) < len(decided), "threads that decide together share a sync"

    operations = life.tape.operations
    made = next(call.returned for call in calls if call.name == "create")
    log = os.stat(life.tape.root / "txlog" / "log.db").st_ino
    restarts = {op.file for op in operations[made:] if isinstance(op, Write) and op.offset == 0 and op.file != log}
    assert any(isinstance(op, Write) and op.file == log for op in operations[made:]), "a checkpoint"
    assert sum(isinstance(op, Write) and op.offset == 0 for op in operations[made:]) > len(restarts) > 1
    assert any(isinstance(op, Sync) and op.file == log for op in operations[made:])
    assert {op.path for op in operations if isinstance(op, SyncDirectory)} == {"", "txlog"}


def test_after_any_crash_every_promise_holds(bench: Bench, random: Random) -> None:
    life = bench.live()
    positions = some(range(len(life.tape.operations) + 1), 150, random)
    assert_none(bench.judge(life, positions, (*LOSSES, *SOME), SEED))


def test_after_a_crash_of_recovery_what_it_has_answered_holds(bench: Bench, random: Random) -> None:
    """Also where it follows a kill, and what it has read was never synced."""
    life = bench.live()
    for position in some(range(made(life), len(life.tape.operations) + 1), 15, random):
        for loss in (KILLED, LOST):
            assert_none(bench.judge_recovery(life, position, loss, f"{SEED}.{position}", every=2 if FULL else 5))


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_operation_fails_what_is_told_is_true(bench: Bench, random: Random, kind: str) -> None:
    for life in struck(bench, kind, 6, random):
        first, last = life.tape.struck or 0, len(life.tape.operations)
        near = range(first, min(last, first + 60))
        positions = {first + 1, last, *random.sample(near, min(len(near), 10 if FULL else 3))}
        assert_none(bench.judge(life, positions, (KILLED, LOST, SOME[0]), f"{SEED}.{life.tape.fault}"))
    assert bench.tally.faults


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"ENOSPC that lasts"}))
def test_a_log_whose_creation_fails_can_be_made(bench: Bench, random: Random, kind: str) -> None:
    for life in struck(bench, kind, 12, random, short=True):
        assert_none(life.history.problems)
        assert life.history.calls[-1].name in ("record", "abort", "register"), "a decision was tried"


def test_what_a_full_disk_has_left_is_no_damage(bench: Bench) -> None:
    """The end of a transaction that failed lies behind what has overwritten its beginning, and then comes a crash."""
    whole = bench.live()
    group = max(call.returned or 0 for call in whole.history.calls[:9] if call.name == "record")
    until = _grown(whole, group)
    problems = []
    for nth in range(until - 4, until + 1):
        life = bench.live(Fault("ENOSPC that lasts", nth))
        first = life.tape.struck or 0
        problems += bench.judge(life, range(first, min(first + 12, len(life.tape.operations))), (KILLED,), SEED)
    assert_none(problems)


def _grown(life: Life, position: int) -> int:
    """How many operations before it want room."""
    return sum(
        isinstance(op, Write) or (isinstance(op, Entries) and None not in op.change.values())
        for op in life.tape.operations[:position]
    )


def made(life: Life) -> int:
    """The position at which the log was there."""
    return next(c.returned or 0 for c in life.history.calls if c.name == "create" and c.outcome == "yes")


def struck(bench: Bench, kind: str, count: int, random: Random, *, short: bool = False) -> Iterator[Life]:
    """Lives in each of which another operation fails: so many, or all."""
    counts = bench.live(short=short).tape.counts
    for nth in some(range(1, sum(counts[operation] for operation in KINDS[kind]) + 1), count, random):
        life = bench.live(Fault(kind, nth), short=short)
        if life.tape.struck is not None:  # a life is not always of the same length
            yield life


def by_crashes(bench: Bench, random: Random) -> Iterator[list[str]]:
    life = bench.live()
    yield bench.judge(life, range(made(life), len(life.tape.operations), 9), (LOST,), SEED)


def by_failing(kind: str) -> Callable[[Bench, Random], Iterator[list[str]]]:
    def look(bench: Bench, random: Random) -> Iterator[list[str]]:
        for life in struck(bench, kind, 80, random):
            yield bench.judge(life, [(life.tape.struck or 0) + 1, len(life.tape.operations)], (LOST,), SEED)

    return look


_FOLDER = "txpool.log.folder:"
_GROUP = "txpool.log.group:GroupCommit."
#: What is left out, and what must turn red then.
MUTATIONS = {
    "no fsync": (Edit(_FOLDER + "_make_durable", "= FULL", "= OFF"), by_crashes),
    "no fsync of a commit": (Edit(_FOLDER + "_make_durable", "= FULL", "= NORMAL"), by_crashes),
    "no fsync of directories": (Edit(_FOLDER + "_sync_directory", "os.fsync(descriptor)", "pass"), by_crashes),
    "no fsync of the directory above": (
        Edit(_FOLDER + "LogFolder.create", "_sync_directory(self.path.parent)", "pass"),
        by_crashes,
    ),
    "SQLite's fsync of its directory is trusted": (
        Edit(_FOLDER + "LogFolder.connect", "_sync_directory(self.path)", "pass"),
        by_failing("EIO on a directory's fsync"),
    ),
    "a failed fsync does not poison": (
        Edit(_GROUP + "_failed", "self.poison = f", "_ = f"),
        by_failing("EIO on fsync"),
    ),
    "a failed fsync is a definite no": (
        Edit(_GROUP + "_failed", "return LogUnknown", "return LogError"),
        by_failing("EIO on fsync, but synced"),
    ),
}


@pytest.mark.parametrize("left_out", MUTATIONS)
def test_what_is_left_out_is_found(bench: Bench, random: Random, left_out: str) -> None:
    edit, look = MUTATIONS[left_out]
    with applied([edit]):
        found = next((problems for problems in look(bench, random) if problems), None)
    assert found, f"nothing was found without it, by seed {SEED}"
    print("\n".join(found))
