"""A forked child finds the pool empty, and leaves its parent's connections alone."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.support.forking import in_child
from txpool.errors import PoolClosed
from txpool.pool import Pool, Pooled


class EchoServer:
    """A connector to an echo server on loopback. Closing says goodbye, as database drivers do: `goodbyes` counts.

    A goodbye that a child sends on its parent's socket ends the parent's session.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.goodbyes = 0

    def _serve(self, served: socket.socket) -> None:
        with served:
            while (request := served.recv(1)) == b"?":
                served.sendall(b"!")
            self.goodbyes += request == b"."

    def connect(self, timeout: float | None = None) -> socket.socket:
        # The child of a fork has no server of its own: whoever connects accepts.
        raw = socket.create_connection(self._listener.getsockname())
        served, _ = self._listener.accept()
        thread = threading.Thread(target=self._serve, args=(served,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return raw

    def is_clean(self, raw: socket.socket) -> bool:
        return raw.fileno() >= 0

    def reset(self, raw: socket.socket, timeout: float | None = None) -> None:
        self.ping(raw)

    def ping(self, raw: socket.socket, timeout: float | None = None) -> None:
        raw.sendall(b"?")
        assert raw.recv(1) == b"!"

    def close(self, raw: socket.socket) -> None:
        raw.sendall(b".")
        raw.close()

    def shut(self) -> None:
        for thread in self._threads:
            thread.join(60)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.shut()


def test_child_begins_empty(server: EchoServer) -> None:
    with closing(Pool(server, name="orders", max_size=2)) as pool:
        held, idle = pool.take(), pool.take()
        pool.give_back(idle)

        def child() -> None:
            assert pool.statistics().size == 0
            mine = [pool.take(timeout=60), pool.take(timeout=60)]
            assert not {id(pooled.raw) for pooled in mine} & {id(held.raw), id(idle.raw)}
            for pooled in mine:
                server.ping(pooled.raw)
                pool.give_back(pooled)
            assert pool.statistics().created == 2

        in_child(child)
        assert pool.statistics().size == 2
        pool.give_back(held)


@pytest.mark.parametrize("end", ["give_back", "discard", "drop", "close", "drain"])
def test_child_leaves_the_parents_alone(server: EchoServer, end: str) -> None:
    """Whatever the child does with what it inherited, the parent's sessions live on."""
    with closing(Pool(server, name="orders", min_size=2, max_size=2)) as pool:
        pool.wait_ready(20)
        held = [pool.take()]
        idle = pool.state.idle[0].raw

        def child() -> None:
            if end == "give_back":
                pool.give_back(held.pop())
            elif end == "discard":
                pool.discard(held.pop())
            elif end == "drop":
                held.clear()
            elif end == "close":
                pool.close()
            else:
                pool.drain()
            gc.collect()

        in_child(child)
        server.ping(held[0].raw)
        server.ping(idle)
        assert server.goodbyes == 0
        pool.give_back(held[0])


def test_child_of_a_busy_parent(server: EchoServer) -> None:
    """The lock, the waiters and the thread of the parent mean nothing in the child."""
    with closing(Pool(server, name="orders", min_size=1, max_size=1)) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        waiting = threads.submit(pool.take)
        while not pool.statistics().waiting:
            pass

        def child() -> None:
            assert pool.statistics().waiting == 0
            first = pool.take(timeout=60)
            pool.discard(first)
            pool.wait_ready(5)
            assert any(thread.name == "txpool-pool-orders" for thread in threading.enumerate())

        with pool.state.lock:
            in_child(child)
        pool.give_back(held)
        pool.give_back(waiting.result(60))


def test_grandchild(server: EchoServer) -> None:
    with closing(Pool(server, name="orders")) as pool:
        pool.give_back(pool.take())

        def child() -> None:
            taken: Pooled[socket.socket] = pool.take()
            in_child(lambda: pool.give_back(taken))
            server.ping(taken.raw)
            pool.give_back(taken)

        in_child(child)
        assert pool.statistics().idle == 1


def test_closed_stays_closed(server: EchoServer) -> None:
    pool = Pool(server, name="orders")
    pool.close()

    def child() -> None:
        with pytest.raises(PoolClosed):
            pool.take()

    in_child(child)
