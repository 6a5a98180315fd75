"""What a task does for itself and the next ones on Linux, in a process of its own as a worker of Spark's is."""

from __future__ import annotations

import subprocess
import sys

_WORKER = """
import fcntl, gc, os, socket, struct, termios
from txpool.spark.task.worker import prepare_worker

with socket.create_server(("127.0.0.1", 0)) as listener:
    spark = socket.create_connection(listener.getsockname())
    worker, _ = listener.accept()
for _ in range(50):  # an exchange, in which the kernel learns that an answer comes soon
    spark.sendall(b"task")
    worker.recv(4)
    worker.sendall(b"done")
    spark.recv(4)
spark.sendall(b"task")
worker.recv(4)
open_before = os.listdir("/proc/self/fd")
prepare_worker()
unacknowledged = struct.unpack("i", fcntl.ioctl(spark, termios.TIOCOUTQ, bytes(4)))
print(unacknowledged[0], len(os.listdir("/proc/self/fd")) - len(open_before), gc.get_freeze_count() > 10_000)
spark.sendall(b"rows")
print(worker.recv(4))
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
prepare_worker()
print(gc.get_freeze_count() == frozen)
"""


def test_a_task_is_acknowledged_and_what_stays_is_collected_once() -> None:
    done = subprocess.run([sys.executable, "-c", _WORKER], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 0 True", "b'rows'", "True"]
