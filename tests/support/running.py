"""Work in a thread beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager


@contextmanager
def running(work: Callable[[], object]) -> Iterator[Future[None]]:
    """The work in a thread of its own; it has ended when the block has."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    thread = threading.Thread(target=run, name="waiter", daemon=True)
    thread.start()
    yield future
    thread.join(120)
    assert not thread.is_alive()
