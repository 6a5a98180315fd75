"""A run of the real log, with threads, another process's log and checkpoints, and its answer at each step."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.crash.disk.recording import Recording
from txpool.errors import LogError, LogUnknown
from txpool.log import Heuristic, Refused, Resolution, SqliteLog
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

NODE: Final = "etl-1"
FOLDER: Final = "txlog"

#: What may be so or not: `decided`, `aborted`, `fenced`, `pointed`, `finished`, `noted`, `registered`; and of whom.
Fact = tuple[str, str]


@dataclass
class Call:
    """A call that is to change facts; positions are numbers of operations on the recording."""

    name: str
    asked: int
    wants: dict[Fact, bool]
    #: None while it is on its way, and for ever where its outcome is unknown.
    returned: int | None = None
    refused: bool = False
    why: str = ""

    @property
    def outcome(self) -> str:
        return "no" if self.refused else "unknown" if self.returned is None else "yes"

    def __str__(self) -> str:
        return f"{self.name} at {self.asked}: {self.outcome} at {self.returned} {self.why}"


@dataclass
class History:
    """What was asked of a log, and what it answered."""

    recording: Recording
    start: dict[Fact, set[bool]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    #: What is wrong whatever the disk says.
    problems: list[str] = field(default_factory=list)

    def call(self, name: str, wants: dict[Fact, bool], act: Callable[[], dict[Fact, bool] | None]) -> Call:
        """Do it; what it returns, if anything, is what it has changed in truth."""
        call = Call(name, len(self.recording.operations), wants)
        self.calls.append(call)
        try:
            changed = act()
        except LogUnknown as error:
            call.why = str(error)
        except (LogError, Refused) as error:
            call.refused, call.why = True, str(error)
            call.returned = len(self.recording.operations)
        except Exception as error:
            call.why = repr(error)
            self.problems.append(f"{name}: an error that is none of ours: {error!r}")
        else:
            if changed is not None:
                call.wants = changed
            call.returned = len(self.recording.operations)
        return call

    def allowed(self, fact: Fact, position: int) -> set[bool]:
        """What may be found of a fact after a crash at this position."""
        values = set(self.start.get(fact, {False}))
        for call in self.calls:
            if fact in call.wants and call.asked < position:
                if call.returned is None or call.returned > position:
                    values.add(call.wants[fact])
                elif not call.refused:
                    values = {call.wants[fact]}
        return values

    def done(self, name: str, position: int) -> bool:
        """Whether a call of this name had returned by then."""
        return any(c.name == name and c.outcome == "yes" and (c.returned or 0) <= position for c in self.calls)

    def unsettled(self, position: int) -> bool:
        """Whether a new incarnation may have been registered whose name nobody was told."""
        births = [call for call in self.calls if call.name == "register" and call.asked < position]
        return any(c.returned is None or c.returned > position for c in births)


class LogRun:
    """Steps, each of which goes on whatever has become of those before."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.history = History(recording)
        self.name = ""
        self.commits = 0
        self._number = 0
        self._registered: SqliteLog | None = None
        self._logs: list[SqliteLog] = []

    def execute(self, *, short: bool = False) -> None:
        """From its creation to its end, or to its first decision."""
        try:
            (self._begin if short else self._live)()
        finally:
            for log in self._logs:
                with suppress(LogError):
                    log.close()
                self.commits += log.commits

    def _begin(self) -> SqliteLog | None:
        log = self.open(create=True)
        if log is None or not self.register(log):
            return None
        self.decide(log)
        return log

    def _live(self) -> None:
        log = self._begin()
        if log is None:
            return
        first, second = self.decide(log), self.decide(log)
        self.decide_together(log, 5)
        self.abort(log, first)
        lost = self.gtrid()
        if self.abort(log, lost).outcome == "yes":
            self.record(log, lost, expected="no")
        self.point(log)
        self.finish(log, lost)
        self.note(log, first)
        self.read(log)
        self.forget(log, first)
        self.decide(log)
        self.flush(log, first)
        other = self.open()
        if other is not None and self.fence(other, self.name).outcome == "yes":
            self.record(log, self.gtrid(), expected="no")
        self.register(log)
        self.decide(log)
        with suppress(LogError):  # the log's own way to a checkpoint in the middle of its work, made shorter
            log._group.write(_checkpoint_soon)
        for _ in range(5):
            self.decide(log)
        if other is not None:
            self.purge(other, lost, second)
            self.close(other)
        self.decide(log)
        self.close(log)
        again = self.open()
        if again is not None and self.register(again):
            self.decide(again)

    # -- the steps ----------------------------------------------------------------------------------------------

    def open(self, *, create: bool = False) -> SqliteLog | None:
        """Twice, as a person does after an error."""

        def opening() -> None:
            self._logs.append(SqliteLog(self.recording.root / FOLDER, node=NODE, create=create))

        for _ in range(2):
            if self.history.call("create" if create else "open", {}, opening).outcome == "yes":
                return self._logs[-1]
        self.history.problems += [f"it does not open again: {self.history.calls[-1]}"] * self.recording.passes
        return None

    def register(self, log: SqliteLog) -> bool:
        """Have a living incarnation; twice, as the next transaction does after an error."""
        before = self.name

        def registering() -> dict[Fact, bool]:
            self.name = log.incarnation
            if self.name == before:
                return {}
            fenced = {("fenced", before): True} if log is self._registered else {}
            self._registered = log
            return {("registered", self.name): True} | fenced

        return any(
            self.history.call("register", {("fenced", before): True}, registering).outcome == "yes" for _ in range(2)
        )

    def decide(self, log: SqliteLog) -> str:
        """One decision; where its outcome is unknown, what the coordinator does."""
        gtrid = self.gtrid()
        if self.record(log, gtrid).outcome == "unknown":
            self._after_unknown(log, [gtrid])
        return gtrid

    def _after_unknown(self, log: SqliteLog, gtrids: list[str]) -> None:
        self.record(log, self.gtrid(), expected="no")
        for gtrid in gtrids:
            self.abort(log, gtrid)
        self.register(log)

    def record(self, log: SqliteLog, gtrid: str, *, expected: str = "yes") -> Call:
        call = self.history.call("record", {("decided", gtrid): True}, lambda: log.record(gtrid, branches_of(gtrid)))
        if call.outcome == "unknown" and expected == "no":
            self.abort(log, gtrid)
        if call.outcome == "yes" and expected == "no":
            self.history.problems.append(f"{gtrid} was decided, and should have been refused")
        return call

    def decide_together(self, log: SqliteLog, count: int) -> None:
        """One thread decides, and is held where it syncs until the others are on their way to do so, too."""
        inside, going = threading.Event(), threading.Event()
        coming = threading.Semaphore(0)
        calls: list[tuple[str, Call]] = []

        def hold() -> None:
            inside.set()
            going.wait()

        def announced(gtrid: str) -> Iterator[BranchRecord]:
            yield from branches_of(gtrid)
            coming.release()

        def decide(gtrid: str) -> None:
            wants = {("decided", gtrid): True}
            calls.append((gtrid, self.history.call("record", wants, lambda: log.record(gtrid, announced(gtrid)))))
            inside.set()

        threads = [threading.Thread(target=decide, args=(self.gtrid(),)) for _ in range(count)]
        self.recording.at_sync = hold
        threads[0].start()
        inside.wait()
        coming.acquire()
        for thread in threads[1:]:
            thread.start()
        for _ in threads[1:]:
            coming.acquire()
        going.set()
        for thread in threads:
            thread.join()
        self.recording.at_sync = None
        unknown = [gtrid for gtrid, call in calls if call.outcome == "unknown"]
        if unknown:
            self._after_unknown(log, unknown)

    def abort(self, log: SqliteLog, gtrid: str) -> Call:
        def aborting() -> dict[Fact, bool]:
            committed = log.abort(gtrid) is Resolution.COMMITTED
            return {("decided", gtrid): committed, ("aborted", gtrid): not committed}

        return self.history.call("abort", {("aborted", gtrid): True}, aborting)

    def point(self, log: SqliteLog) -> None:
        gtrid = self.gtrid()
        self.history.call("point", {("pointed", gtrid): True}, lambda: log.point(gtrid, "ledger"))

    def finish(self, log: SqliteLog, gtrid: str) -> None:
        self.history.call("finish", {("finished", gtrid): True}, lambda: log.finish(gtrid))

    def note(self, log: SqliteLog, gtrid: str) -> None:
        heuristic = Heuristic(gtrid, "1:orders:L", "orders", "commit", "rolled back")
        self.history.call("note", {("noted", gtrid): True}, lambda: log.record_heuristic(heuristic))

    def forget(self, log: SqliteLog, gtrid: str) -> None:
        """Lazy: whether it is durable is not known before a flush."""
        self.history.calls.append(Call("forget", len(self.recording.operations), {("decided", gtrid): False}))
        log.forget(gtrid)

    def flush(self, log: SqliteLog, *forgotten: str) -> None:
        self.history.call("flush", {("decided", gtrid): False for gtrid in forgotten}, log.flush)

    def fence(self, log: SqliteLog, name: str) -> Call:
        return self.history.call("fence", {("fenced", name): True}, lambda: log.fence(name))

    def purge(self, log: SqliteLog, *gtrids: str) -> None:
        kinds = ("decided", "aborted", "finished", "pointed")
        self.history.call("purge", {(k, gtrid): False for k in kinds for gtrid in gtrids}, lambda: log.purge(gtrids))

    def read(self, log: SqliteLog) -> None:
        """The living log shows what it has answered."""

        def looking() -> None:
            facts, position = facts_of(log), len(self.recording.operations)
            self.history.problems.extend(differences(self.history, facts, position, "the living log"))

        self.history.call("look", {}, looking)

    def close(self, log: SqliteLog) -> None:
        self.history.call("close", {}, log.close)

    def gtrid(self) -> str:
        self._number += 1
        return make_gtrid(NODE, self.name, self._number)


def branches_of(gtrid: str) -> list[BranchRecord]:
    """Two branches, of which the second has much to say: a decision takes several pages."""
    orders = BranchRecord(make_xid(gtrid, 1, "orders"), "orders", "7412/5", {"xid": "771"})
    return [orders, BranchRecord(make_xid(gtrid, 2, "audit"), "audit", gtrid * 200)]


def facts_of(log: SqliteLog) -> set[Fact]:
    """All that the log says; a decision whose branches are not those that were asked for has another name."""
    decided = log.decisions().items()
    registered = log.incarnations()
    return {
        *(("decided" if [*d.branches] == branches_of(gtrid) else "decided otherwise", gtrid) for gtrid, d in decided),
        *(("aborted", gtrid) for gtrid in log.aborted()),
        *(("finished", gtrid) for gtrid in log.finished()),
        *(("pointed", gtrid) for gtrid in log.pointers()),
        *(("noted", heuristic.gtrid) for heuristic in log.heuristics()),
        *(("registered", name) for name in registered),
        *(("fenced", name) for name in registered if log.is_fenced(name)),
    }


def differences(history: History, facts: set[Fact], position: int, where: str) -> list[str]:
    """What is there and should not be, and the other way round."""
    known = {fact for call in history.calls for fact in call.wants} | set(history.start)
    if history.unsettled(position):
        facts = {fact for fact in facts if fact[0] != "registered" or fact in known}
    return [
        f"{where}: {fact} is {fact in facts}, and may be {sorted(history.allowed(fact, position))}"
        for fact in sorted(known | facts)
        if (fact in facts) not in history.allowed(fact, position)
    ]


def _checkpoint_soon(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_autocheckpoint = 12").fetchone()
