"""What belongs to a thread, and what a task of an event loop has in its place: each of these is looked at once.

A task's call may be suspended within a lock, and another task of its thread goes on. Two things make that safe: a lock
that is held over a wait is a `TaskLock`, which a call owns; and no other lock is held over one, which
tests/integration/aio/test_locks.py shows.
"""

from __future__ import annotations

import re

from tests.support.repository import ROOT

_OF_A_THREAD = re.compile(r"\bRLock\(|\bget_ident\(|\blocal\(\)|\bcurrent_thread\(")

NEVER_OVER_A_WAIT = "never held over a wait"
WHAT_IT_BECAME = {
    "txpool/aio/bridge.py": "each thread's idle greenlets, which belong to it",
    "txpool/aio/lock.py": "a TaskLock's owner where that is a thread",
    "txpool/aio/threads.py": "for which call a thread works: it owns what the call owns",
    "txpool/dbapi/enlistment.py": "its lock is the transaction's new_lock(), a TaskLock in a loop; the thread that has "
    "opened it is asked only where no transaction is ambient, and tasks of its loop are refused there, too",
    "txpool/dbapi/statements.py": "the holder, for messages: a task's is its name",
    "txpool/jobs/properties.py": "Spark's own properties of a thread: jobs are not started by tasks' calls",
    "txpool/locks.py": "the classes themselves",
    "txpool/log/sqlite/group.py": "a task waits by a signal of its call, and a thread writes for it",
    "txpool/metrics/instruments.py": NEVER_OVER_A_WAIT,
    "txpool/pool/finalisers.py": NEVER_OVER_A_WAIT,
    "txpool/pool/listeners.py": "whether it is the pool's own thread, which runs no tasks",
    "txpool/pool/maintenance.py": "whether it is the pool's own thread, which runs no tasks",
    "txpool/pool/opener.py": "whether it is the pool's own thread, which runs no tasks",
    "txpool/pool/report.py": "whether the holder is this thread, for a message",
    "txpool/pool/taking.py": "the holder, for messages: a task's is its thread",
    "txpool/resources/jdbc/dbapi/connection.py": "JDBC blocks in threads",
    "txpool/resources/jdbc/jvm/jvm.py": "JDBC blocks in threads, and each is attached to the JVM",
    "txpool/tm/background/resolver.py": "whether it is the resolver's own thread",
    "txpool/tm/background/timers.py": NEVER_OVER_A_WAIT,
    "txpool/tm/completion/dropped.py": "the name of its own thread",
    "txpool/tm/manager.py": NEVER_OVER_A_WAIT,
    "txpool/tm/transaction.py": NEVER_OVER_A_WAIT,
    "txpool/waits/watcher.py": "whether it is its own thread",
}


def test_all_that_belongs_to_a_thread_is_listed() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("txpool/**/*.py")
        if _OF_A_THREAD.search(path.read_text(encoding="utf-8"))
    }
    assert found - set(WHAT_IT_BECAME) == set()
    assert set(WHAT_IT_BECAME) - found <= {"txpool/locks.py", "txpool/log/sqlite/group.py"}
