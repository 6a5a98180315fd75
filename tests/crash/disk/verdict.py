"""Opens what a crash has left with the real log, recovers, crashes again, and checks every promise of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash.disk import calls
from tests.crash.disk.image import KILLED, LOSSES, LOST, Disk, Loss
from tests.crash.disk.recording import Fault, Recording, Sync, Write
from tests.crash.disk.vfs import FileSystem
from tests.crash.disk.work import FOLDER, NODE, Fact, History, LogRun, branches_of, differences, facts_of
from txpool.errors import LogError
from txpool.log import IncarnationState as Alive
from txpool.log import Resolution, SqliteLog
from txpool.xid import make_gtrid

#: Bytes of a write-ahead log's header.
_HEADER = 32


@dataclass
class Counts:
    """What was done, to be printed."""

    operations: int = 0
    images: int = 0
    refusals: int = 0  # images in which no log was yet, and which said so
    recoveries: int = 0  # recorded, and crashed in turn
    faults: int = 0

    def __str__(self) -> str:
        return (
            f"{self.operations} I/O operations, {self.images} crash images ({self.refusals} of them before the log was "
            f"made), {self.recoveries} recoveries crashed in turn, {self.faults} faults injected"
        )


class CrashChecker:
    """A folder for the log, one for its images, and the names by which files keep their numbers."""

    def __init__(self, system: FileSystem, folder: Path) -> None:
        self.counts = Counts()
        self._system = system
        self._folder = folder
        self._runs = 0

    def run(self, fault: Fault | None = None, *, short: bool = False) -> LogRun:
        """Run the log, or only its beginning, with a recording of its own."""
        self._runs += 1
        root, attic = self._folder / f"disk{self._runs}", self._folder / f"attic{self._runs}"
        root.mkdir()
        attic.mkdir()
        run = LogRun(Recording(root, attic, fault))
        with self._recording(run.recording):
            run.execute(short=short)
        self.counts.operations += sum(run.recording.counts.values())
        self.counts.faults += run.recording.failed_at is not None
        return run

    def check(self, run: LogRun, positions: Iterable[int], losses: Iterable[Loss], seed: str) -> list[str]:
        """What is wrong with the crashes at these positions, by these losses; a loss with a seed gets one for each."""
        problems = [*run.history.problems]
        wanted = sorted(set(positions))
        chosen = [*losses]
        disk, done = Disk(), 0
        for position in wanted:
            for operation in run.recording.operations[done:position]:
                disk.apply(operation)
            done = position
            for loss in chosen:
                own = Loss(loss.name, seed=f"{seed}.{position}.{loss.seed}") if loss.seed else loss
                where = f"after {position} operations, {own}"
                found = self._image(run, disk, position, own, where)
                if found:
                    problems.extend([*found, *_around(run, position)])
                    if len(problems) > 20:
                        return problems
        return problems

    def check_recovery(self, run: LogRun, position: int, loss: Loss, seed: str, *, every: int = 1) -> list[str]:
        """What is wrong after a recovery from this crash that itself crashes, at every so many of its operations."""
        disk = _at(run, position)
        if loss is not KILLED:  # after a kill, what was written and not synced is still on its way to the disk
            disk = disk.after(loss)
        where = f"after {position} operations, {loss}, and recovery's"
        root = self._folder / "image"
        disk.after(KILLED).write(root, run.recording.attic)
        recording = Recording(root, run.recording.attic)
        with self._recording(recording):
            history, problems = recover(run.history, position, recording, Random(seed))
        self.counts.recoveries += 1
        self.counts.operations += sum(recording.counts.values())
        done = 0
        for second in (*range(1, len(recording.operations), every), len(recording.operations)):
            for operation in recording.operations[done:second]:
                disk.apply(operation)
            done = second
            for again in (LOST, Loss("some is lost", seed=f"{seed}.{second}")):
                disk.after(again).write(self._folder / "second", run.recording.attic)
                self.counts.images += 1
                problems += self._compare(self._folder / "second", history, second, f"{where} {second}, {again}")
        return problems and [*problems, *_around(run, position)]

    def _image(self, run: LogRun, disk: Disk, position: int, loss: Loss, where: str) -> list[str]:
        root = self._folder / "image"
        made = run.history.done("create", position)
        disk.after(loss).write(root, run.recording.attic)
        self.counts.images += 1
        problems: list[str] = []
        try:
            problems = self._recover(run, position, loss)
        except LogError as error:
            if made and not ("is damaged" in str(error) and _tore_a_header(run, position)):
                return [f"{where}: the log does not open: {error}"]
            if made:
                return []
            self.counts.refusals += 1
            with suppress(LogError):  # as the next process does, where `log.create` is set
                SqliteLog(root / FOLDER, node=NODE, create=True).close()
                problems = self._recover(run, position, loss)
        return [f"{where}: {problem}" for problem in problems]

    def _recover(self, run: LogRun, position: int, loss: Loss) -> list[str]:
        recording = Recording(self._folder / "image", self._folder / "image")
        return recover(run.history, position, recording, Random(loss.seed))[1]

    def _compare(self, root: Path, history: History, position: int, where: str) -> list[str]:
        log = SqliteLog(root / FOLDER, node=NODE)
        try:
            return differences(history, facts_of(log), position, where)
        finally:
            log.close()

    @contextmanager
    def _recording(self, recording: Recording) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._system.recording(recording))
            stack.enter_context(calls.recording(recording))
            yield


def recover(before: History, position: int, recording: Recording, random: Random) -> tuple[History, list[str]]:
    """What recovery does to a log after a crash: look, fence, settle, decide anew; and all that is wrong on the way."""
    log = SqliteLog(recording.root / FOLDER, node=NODE)
    try:
        facts = facts_of(log)
        problems = differences(before, facts, position, "what is found")
        names = log.incarnations()
        problems += [f"{name} is alive" for name, state in names.items() if state is Alive.ALIVE]
        asked = {f for call in before.calls for f in call.wants if call.asked < position} | facts
        history = History(recording, {fact: before.allowed(fact, position) for fact in asked})
        for name in names:  # a fence is a durable write: what was read before it is sure after it
            sure: dict[Fact, bool] = {fact: fact in facts for fact in asked} | {("fenced", name): True}
            history.call("fence", sure, lambda name=name: log.fence(name))  # type: ignore[misc]
            facts.add(("fenced", name))
        if names:
            problems += _settle(log, history, facts, sorted({g for k, g in asked if k == "decided"}), random)
        problems += differences(history, facts_of(log), len(recording.operations) + 1, "recovered")
        problems += history.problems
        problems += [f"recovery: {call}" for call in history.calls if call.outcome != "yes"]
    finally:
        log.close()
    return history, problems


def _settle(log: SqliteLog, history: History, facts: set[Fact], gtrids: list[str], random: Random) -> list[str]:
    """Abort records for some of them meet the decisions that were found, or take their place; then a new decision."""
    problems = []
    unsure = [gtrid for gtrid in gtrids if len(history.start.get(("decided", gtrid), ())) > 1]
    for gtrid in {*unsure, *random.sample(gtrids, min(2, len(gtrids)))}:
        committed = ("decided", gtrid) in facts
        answers: list[Resolution] = []
        history.call(
            "abort",
            {("aborted", gtrid): not committed},
            lambda gtrid=gtrid, answers=answers: answers.append(log.abort(gtrid)),  # type: ignore[misc]
        )
        if answers != [Resolution.COMMITTED if committed else Resolution.ABORTED]:
            problems.append(f"{gtrid}: found as decided: {committed}; the abort record's answer: {answers}")
    own = log.incarnation
    gtrid = make_gtrid(NODE, own, 1)
    history.start[("registered", own)] = {False, True}
    history.call("record", {("decided", gtrid): True}, lambda: log.record(gtrid, branches_of(gtrid)))
    return problems


def _at(run: LogRun, position: int) -> Disk:
    disk = Disk()
    for operation in run.recording.operations[:position]:
        disk.apply(operation)
    return disk


def _tore_a_header(run: LogRun, position: int) -> bool:
    """Whether half a header was written over a write-ahead log: none can tell that from damage, and a log refuses."""
    struck, operations = run.recording.failed_at, run.recording.operations
    written = None if struck is None or struck >= position else operations[struck]
    if isinstance(written, Write) and written.offset == 0 and len(written.data) == _HEADER // 2:
        return True
    # One that was not synced may be torn by the crash itself.
    last: dict[int, Write | Sync] = {}
    for operation in operations[:position]:
        if isinstance(operation, Sync) or (
            isinstance(operation, Write) and operation.offset == 0 and len(operation.data) == _HEADER
        ):
            last[operation.file] = operation
    return any(isinstance(operation, Write) for operation in last.values())


def _around(run: LogRun, position: int) -> list[str]:
    """The story before a crash, so that a finding explains itself."""
    first = max(0, position - 12)
    return [
        f"  the fault: {run.recording.fault}, at {run.recording.failed_at}",
        *(f"  {call}" for call in run.history.calls if call.asked <= position),
    ][-14:] + [f"  {first + n}: {operation}" for n, operation in enumerate(run.recording.operations[first:position])]


__all__ = ["KILLED", "LOSSES", "LOST", "Counts", "CrashChecker", "recover"]
