"""Named points at which a test, or the demo, may stop a transaction: raise, SIGKILL, hang, or lose a reply.

Unarmed, a point costs one attribute test: ``if failpoints.armed: failpoints.hit("log.recorded")``. Armed by `arm`, or
by the environment of a child process: ``TXPOOL_FAILPOINTS="coordinator.decided=kill, log.record=raise@2"`` (the second
time it is reached). Only tests may arm one: users' own by `txpool.testing.kill_at`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from txpool.locks import Lock

#: Every point, with the state in which it is reached. A test fails if one is never reached.
POINTS: Final = {
    "coordinator.begin": "commit was called, nothing has been sent",
    "readers.apart": "the branches that have only read are known, nothing is named or prepared",
    "readers.rolling-back": "no commit follows, or a task has prepared the others; no ROLLBACK of a reader is sent",
    "readers.committing": "the others have committed, no COMMIT of a reader is sent",
    "coordinator.marked": "the marked row is answered, no PREPARE is sent",
    "coordinator.preparing": "every PREPARE is sent, no reply is read",
    "coordinator.prepared": "every branch has voted to commit, nothing is decided",
    "coordinator.decided": "the decision is durable, no COMMIT is sent",
    "coordinator.committing": "every COMMIT is sent, no reply is read",
    "coordinator.one-committed": "one branch has answered its COMMIT, others may not have",
    "coordinator.committed": "every branch has answered, the decision is still kept",
    "coordinator.rolling-back": "the outcome is rollback, nothing has been sent",
    "branch.prepare-sent": "one branch's PREPARE is sent",
    "branch.commit-sent": "one branch's COMMIT PREPARED is sent",
    "branch.rollback-sent": "one branch's ROLLBACK PREPARED is sent",
    "log.note": "a new location note is about to be written, before the first PREPARE there",
    "log.timeout": "a larger timeout of this process's transactions is about to be noted, before the first PREPARE",
    "log.last": "it is about to be noted that a last resource commits before the decision",
    "log.record": "the decision is about to be written",
    "log.recorded": "the decision is durable, its writer does not know it yet",
    "log.abort": "an abort record is about to be written",
    "log.finish": "a finished mark is about to be written",
    "files.staged": "a transaction's staging folder is durable, nothing is in it",
    "files.synced": "all that is staged is synced, no manifest names it",
    "files.published": "one folder is published, others may not be",
    "files.succeeded": "every folder is published and says _SUCCESS, the manifest is still there",
    "files.sweeping": "what was staged is out of the way of its transaction, and is about to be removed",
    "delta.linked": "the files of rows have their names in a Delta table's folder, its log does not name them",
    "delta.appended": "a Delta table's log names the files, the entry's own name is not synced",
    "delta.published": "every Delta table's log is synced, the manifest is still there",
    "s3.created": "an upload is begun, the journal does not name it, and no part was sent",
    "s3.staged": "an upload is in the journal, no part was sent",
    "s3.copied": "one of the files that Spark has written is in an upload, others may not be",
    "s3.uploaded": "all parts are in the store, no manifest names them",
    "s3.ending": "the manifest says how its branch ends, nothing else has been done",
    "s3.completed": "one object has appeared, others may not have",
    "s3.published": "every object has appeared and the journal is gone, the manifest is still there",
    "s3.sweeping": "what was staged can be prepared no more, and is about to be dropped",
    "lake.journal": "a lake's journal is durable, its row, if it has one, is not inserted",
    "lake.file": "a file of a lake is listed in the journal, and is about to be made",
    "lake.taken": "the files of Spark's tasks are listed in the transaction's journal, no snapshot names them",
    "lake.written": "the new metadata is written, nothing is synced",
    "lake.swapped": "the pointers are changed, nothing has been prepared",
    "lake.ended": "the transaction has ended in all tables, the journal is still there",
    "lake.sweeping": "a sweep has won the key, and removes a file",
    "lake.synced": "REST: the files of a table's snapshot are synced, the journal does not name its reference",
    "lake.noted": "REST: the journal names a table's reference, which is about to be made",
    "lake.referenced": "REST: one table's reference is made, others may not be",
    "lake.rebased": "REST: others have committed, what is staged is appended again, and main is about to move",
    "lake.table-ended": "REST: the branch has ended in one table, in others it may not have",
    "marked.row": "the marked row is about to be inserted",
    "marked.commit": "the marked branch's COMMIT is about to be sent",
    "marked.committed": "the marked branch has committed, its coordinator does not know it yet",
    "marked.forget": "marked rows are about to be deleted",
    "recovery.listed": "the prepared branches are listed",
    "recovery.fenced": "the dead incarnations are fenced",
    "recovery.read": "marks and decisions are read, nothing has been done",
    "recovery.tombstone": "a tombstone is about to be inserted",
    "recovery.branch": "one branch is about to be finished",
    "recovery.forget": "decisions are about to be forgotten",
}

#: What a point does: `raise`, `interrupt` (SIGINT), `kill` (SIGKILL), `stop` (SIGSTOP), `hang`, `count` (only notes
#: it), or a call.
Action = str | Callable[[], object]

#: True while any point is armed: the one attribute that an unarmed point costs.
armed = False

_SIGNALS: Final = {"interrupt": signal.SIGINT, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_ACTIONS: Final = ("raise", "hang", "count", *_SIGNALS)

_actions: dict[str, tuple[Action, int]] = {}
_reached: dict[str, int] = {}
_lock = Lock()


class Failpoint(Exception):
    """Raised by a point that was armed with `raise`."""


def arm(point: str, action: Action = "raise", *, nth: int = 1) -> None:
    """Arm a point: it acts the nth time that it is reached."""
    global armed
    if point not in POINTS:
        raise ValueError(f"no failpoint is called {point!r}")
    if not callable(action) and action not in _ACTIONS:
        raise ValueError(f"failpoint {point}: {action!r} is none of {', '.join(_ACTIONS)}")
    with _lock:
        _actions[point] = (action, nth)
        _reached[point] = 0
        armed = True


def disarm() -> None:
    """Disarm every point."""
    global armed
    with _lock:
        _actions.clear()
        armed = False


@contextmanager
def arming(point: str, action: Action = "raise", *, nth: int = 1) -> Iterator[None]:
    """Arm a point for the length of a block."""
    arm(point, action, nth=nth)
    try:
        yield
    finally:
        disarm()


def reached(point: str) -> int:
    """How often an armed point has been reached since it was armed."""
    return _reached.get(point, 0)


def hit(point: str) -> None:
    """Called where a point is reached: does what the point is armed with."""
    with _lock:
        if point not in _actions:
            return
        action, nth = _actions[point]
        _reached[point] += 1
        if _reached[point] != nth:
            return
    if callable(action):
        action()
    elif action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
    elif action == "hang":
        time.sleep(3600)
    elif action == "raise":
        raise Failpoint(point)


def _arm_from_environment(text: str) -> None:
    for item in filter(None, (part.strip() for part in text.split(","))):
        point, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        arm(point, action or "raise", nth=int(nth or 1))


_arm_from_environment(os.environ.get("TXPOOL_FAILPOINTS", ""))
