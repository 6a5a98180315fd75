"""What a task does to be lost, once. Drivers and executors of the scripts import it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pyspark import TaskContext


def first_time(once: Path) -> bool:
    """True in one task attempt of partition 0, which leaves this file, and in no other."""
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() != 0 or once.exists():
        return False
    once.touch()
    return True


def kill_executor() -> None:
    """Kill the executor of this task, which is the parent of the workers' daemon."""
    executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(executor), signal.SIGKILL)
