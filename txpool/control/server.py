"""One process's socket: a thread that serves one request at a time, from its start to the process's end.

A forked child closes its copy of the parent's socket, and listens on its own once one of its pools opens a connection.
Tasks on Spark's executors do not listen.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from threading import Thread
from time import sleep

from txpool import datasource
from txpool.config.settings import CoordinatorSettings
from txpool.control import folder as folders
from txpool.control.actions import perform
from txpool.control.messages import LONGEST_REQUEST, MessageError, Request, encoded, read_line
from txpool.errors import ConfigurationError, Error, described
from txpool.jobs.bypass import in_task
from txpool.locks import Lock
from txpool.tm import manager

logger = logging.getLogger("txpool.control")

#: Seconds that a client has for its request, and for taking the answer.
_PATIENCE = 2.0
_PAUSE = 0.1


class Listener:
    """A socket in the folder, and the thread that serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket, self.path = folders.bound(folder)
        # An empty context: the thread must not inherit the transaction in which it happened to start.
        self._thread = Thread(target=Context().run, args=(self._run,), name="txpool-control", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def close_copy(self) -> None:
        """In a forked child: the socket itself is the parent's."""
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0 or not self.path.exists():
                    return
                sleep(_PAUSE)  # this process has too many open files, or the like
                continue
            with connection:
                try:
                    self._serve(connection)
                except Exception as error:
                    logger.info("control: a request was not answered: %s", described(error))

    def _serve(self, connection: socket.socket) -> None:
        pid, uid = folders.peer(connection)
        if uid not in {os.geteuid(), 0}:
            logger.warning("control: process %d of user %d was refused", pid, uid)
            return
        try:
            request = Request.parse(read_line(connection, LONGEST_REQUEST, _PATIENCE))
        except EOFError:  # a look whether this process lives
            return
        except MessageError as error:
            answer = encoded({"error": str(error)})
        else:
            if request.do != "list":
                logger.info("control: %s of pool %r, by process %d of user %d", request.do, request.pool, pid, uid)
            answer = encoded(perform(request))
        connection.settimeout(_PATIENCE)
        connection.sendall(answer)


_listener: Listener | None = None
_starting = Lock()
#: Whether this process has looked whether it is to listen.
_looked = False


def configured(settings: CoordinatorSettings) -> None:
    """Listen where these settings say so, and nowhere else.

    ConfigurationError if that folder cannot be used: nothing has changed then.
    """
    global _listener, _looked
    wanted = None if in_task() else settings.control_folder
    with _starting:
        _looked = True
        if _listener is not None and _listener.folder == wanted:
            return
        try:
            previous, _listener = _listener, None if wanted is None else Listener(folders.ensure(wanted))
        except (OSError, RuntimeError) as error:  # RuntimeError: no further thread can be started
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(f"control.folder = {wanted}: no socket could be made there: {reason}") from error
        if previous is not None:
            previous.close()


def start_when_used() -> None:
    """Listen, if the process's configuration says so, once a pool opens its first connection. Never raises."""
    global _looked
    if _looked:
        return
    _looked = True
    try:
        settings = manager.settings_in_force()
    except Error as error:  # the first transaction will say it
        logger.debug("control: this process does not listen: %s", described(error))
        return
    try:
        configured(settings)
    except Error as error:
        logger.warning("control: this process does not listen: %s", described(error))


def _close() -> None:
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener.close()


def _after_fork_in_child() -> None:
    global _listener, _looked, _starting
    _starting = Lock()
    listener, _listener, _looked = _listener, None, False
    if listener is not None:
        listener.close_copy()


manager.when_configured.append(configured)
datasource.when_used.append(start_when_used)
atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
