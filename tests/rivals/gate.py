"""A gate before a database's server: what comes by one of its connections may be held, lost, or be somebody's end."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum

#: What changes anything: each is one statement, or a message with several.
_STATEMENT = re.compile(rb"(?i)(insert into|copy |prepare transaction|commit|rollback prepared)\b")


class Fault(Enum):
    """What happens at a statement."""

    KILLED_BEFORE = "the client is killed before the statement is executed"
    KILLED_BEHIND = "the client is killed after the statement was executed, and before its answer"
    EXECUTOR_KILLED = "as before, but Spark's executor is killed, and Spark tries its task again"
    REPLY_LOST = "the connection is cut after the statement was executed"
    STALLED = "the statement is held, and recovery runs meanwhile"


class Trigger:
    """The n-th statement through all gates of a contest, once it is armed; what is to be done there, and if it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._fault = Fault.STALLED
        self._act: Callable[[], object] = bool
        self.fired = False

    def arm(self, nth: int, fault: Fault, act: Callable[[], object]) -> None:
        """At the n-th statement from now on, counted from 1."""
        with self._lock:
            self._left, self._fault, self._act, self.fired = nth, fault, act, False

    def disarm(self) -> None:
        self.arm(0, Fault.STALLED, bool)

    def pull(self, message: bytes) -> Fault | None:
        """What is to be done with the message."""
        if not _STATEMENT.search(message):
            return None
        with self._lock:
            self._left -= 1
            if self._left:
                return None
            self.fired = True
            return self._fault

    def act(self) -> None:
        self._act()


class Gate:
    """A port that leads to a server."""

    def __init__(self, port: int, trigger: Trigger, at_the_first: Callable[[], object] | None = None) -> None:
        self._target = port
        self._trigger = trigger
        #: Called at the first connection, which waits.
        self._at_the_first = at_the_first
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._server.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, ExitStack() as stack, suppress(OSError):
            with self._lock:
                first, self._at_the_first = self._at_the_first, None
                if first is not None:
                    first()
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._target)))
            listening = threading.Event()
            listening.set()
            answered = threading.Event()
            back = threading.Thread(target=_answers, args=(server, client, listening, answered), daemon=True)
            back.start()
            try:
                while data := client.recv(65536):
                    fault = self._trigger.pull(data)
                    if fault is Fault.KILLED_BEFORE:
                        self._trigger.act()
                        break
                    if fault in (Fault.KILLED_BEHIND, Fault.EXECUTOR_KILLED, Fault.REPLY_LOST):
                        listening.clear()
                        answered.clear()
                        server.sendall(data)
                        answered.wait(60)
                        if fault is not Fault.REPLY_LOST:
                            self._trigger.act()
                        break
                    if fault is Fault.STALLED:
                        self._trigger.act()
                    server.sendall(data)
            finally:
                for each in (server, client):
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                back.join()


def _answers(
    server: socket.socket, client: socket.socket, listening: threading.Event, answered: threading.Event
) -> None:
    """What the server says, for as long as somebody listens."""
    with suppress(OSError):
        while data := server.recv(65536):
            answered.set()
            if listening.is_set():
                client.sendall(data)
    answered.set()
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
