"""What is bound to a thread, of which many tasks share one: each place is listed, with what it is for a task."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.repository import ROOT

_NAMES = {"RLock", "get_ident", "current_thread", "local"}

_NEVER_HELD = "nothing waits while it is held, so no other task comes between: test_locks"
_THREADS_OWN = "asked by a thread of ours whether it is that one: no task runs there"

#: By file and name.
BECAME = {
    ("recovery/scan/datasources/workers.py", "RLock"): _NEVER_HELD,
    ("txpool/aio/bridge.py", "local"): "the idle greenlets of a thread, which cannot be switched to from another",
    ("txpool/aio/lock.py", "get_ident"): "the owner, if neither a task's call nor a thread that works for one asks",
    ("txpool/aio/threads.py", "local"): "in a thread that works for a task's call: that call, which owns its locks",
    ("txpool/dbapi/enlistment.py", "get_ident"): "a task without the transaction is refused as its thread would be",
    ("txpool/dbapi/statements.py", "current_thread"): "for people: a thread that is no task's",
    ("txpool/jobs/properties.py", "local"): "properties of Spark's own jobs, which belong to a thread",
    ("txpool/locks.py", "RLock"): "of a transaction that has a timeout and that no task has begun",
    ("txpool/metrics/instruments.py", "RLock"): _NEVER_HELD,
    ("txpool/pool/finalisers.py", "RLock"): _NEVER_HELD,
    ("txpool/pool/listeners.py", "current_thread"): _THREADS_OWN,
    ("txpool/pool/maintenance.py", "current_thread"): _THREADS_OWN,
    ("txpool/pool/opener.py", "current_thread"): _THREADS_OWN,
    ("txpool/pool/report.py", "current_thread"): "for people: the thread, which is the loop's",
    ("txpool/pool/taking.py", "current_thread"): "for people: the thread that has taken a connection",
    ("txpool/pool/taking.py", "local"): "the same, kept",
    (
        "txpool/resources/jdbc/dbapi/connection.py",
        "RLock",
    ): "a task's call is a thread's here, from its begin to its end",
    ("txpool/resources/jdbc/jvm/jvm.py", "current_thread"): "the JVM's signal handlers",
    ("txpool/resources/jdbc/jvm/jvm.py", "local"): "the threads that the JVM knows; a task's calls are made in such",
    ("txpool/tm/background/resolver.py", "current_thread"): _THREADS_OWN,
    ("txpool/tm/background/timers.py", "RLock"): _NEVER_HELD,
    ("txpool/tm/completion/dropped.py", "current_thread"): "the name of a thread of ours",
    ("txpool/tm/manager.py", "RLock"): _NEVER_HELD,
    ("txpool/tm/transaction.py", "RLock"): "not held over any wait. Those that are: TaskLock, by its `new_lock`",
    ("txpool/waits/watcher.py", "current_thread"): _THREADS_OWN,
}


def _calls(path: Path) -> set[str]:
    """Which of them are called in this file, without arguments."""
    text = path.read_text()
    if not any(f"{name}()" in text for name in _NAMES):
        return set()
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and not node.args]
    plain = {call.id for call in calls if isinstance(call, ast.Name)}
    of_module = {call.attr for call in calls if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name)}
    return (plain | of_module) & _NAMES


def test_each_place_is_listed() -> None:
    files = [path for package in ("txpool", "recovery") for path in (ROOT / package).rglob("*.py")]
    assert {(str(path.relative_to(ROOT)), name) for path in files for name in _calls(path)} == BECAME.keys()
