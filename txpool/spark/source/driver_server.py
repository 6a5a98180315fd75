"""The driver's desk: where the short-lived Python processes of a Spark data source ask the driver's own process.

Spark plans, commits and aborts a write each in a process that it has started for that, on the driver's machine. The
transaction, its decision log and the datasources are the driver's own. They talk over a Unix socket in a folder that
only the driver's user can enter.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from time import sleep
from typing import Any

from txpool.errors import OperationalError

logger = logging.getLogger("txpool")

_FAMILY = "AF_UNIX"
#: What the system allows for a socket's path, with room for the file's name.
_LONGEST = 80
#: Seconds, after the system has refused something.
_PAUSE = 0.2


class DriverServer:
    """Answers requests, each in a thread of its own, for as long as the process lives."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._pid = os.getpid()
        self._closed = False
        where = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(prefix="txpool-", dir=where if len(where.encode()) < _LONGEST else "/tmp")  # noqa: S108
        #: What processes of Spark's give to `ask`.
        self.address = str(Path(self._folder, "desk"))
        self._listener = Listener(self.address, _FAMILY, backlog=64)
        threading.Thread(target=self._serve, name="txpool-desk", daemon=True).start()
        atexit.register(self.close)

    def _serve(self) -> None:
        while True:
            try:
                line = self._listener.accept()
                threading.Thread(target=self._answer_connection, args=[line], name="txpool-desk", daemon=True).start()
            except Exception as error:
                if self._closed:
                    return
                # Who asks must not wait for ever: there are too many files or threads just now.
                logger.warning("a process of Spark's cannot be answered: %s", error)
                sleep(_PAUSE)

    def _answer_connection(self, line: Connection) -> None:
        with line:
            request = None
            try:
                request = line.recv()
                reply = True, self._answer(request)
            except EOFError:  # who asked is gone
                return
            except Exception as error:
                reply = False, (_portable(error), getattr(error, "__notes__", []))
            try:
                line.send(reply)
            except OSError as error:
                logger.warning("the process that asked for %s is gone: %s", type(request).__name__, error)

    def close(self) -> None:
        """Answer no more; the folder is gone."""
        if os.getpid() == self._pid:
            self._closed = True
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def ask(address: str, request: Any) -> Any:
    """What the driver's process answers; raises what it raised. OperationalError where it does not answer."""
    try:
        with Client(address, _FAMILY) as line:
            line.send(request)
            good, reply = line.recv()
    except (OSError, EOFError) as error:
        raise OperationalError(
            f"the driver's process does not answer ({type(error).__name__}: {error}): it has ended, or this is not its "
            "machine. What it had not decided rolls back"
        ) from error
    if good:
        return reply
    failure, notes = reply
    failure.__notes__ = notes  # a driver's error leaves them behind when it travels
    raise failure


def _portable(error: Exception) -> Exception:
    """The error, or one with its text where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here
    except Exception:
        return OperationalError(f"{type(error).__name__}: {error}")
    return error
