"""A server in the driver's process, for the short-lived Python processes in which Spark runs a data source.

Spark plans, commits and aborts a write in processes that it starts for each step on the driver's machine. Transactions,
the decision log and the datasources are in the driver's own process. The processes talk to it over a Unix socket in a
folder that only the driver's user can enter.
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

from txpool.errors import OperationalError, described

logger = logging.getLogger("txpool")

_FAMILY = "AF_UNIX"
#: The longest folder whose socket path the system accepts: the limit is about 107 bytes with the rest of the path.
_MAX_FOLDER_BYTES = 80
#: The pause after an accept has failed.
_ACCEPT_RETRY_SECONDS = 0.2


class DriverServer:
    """Answers requests, each in a thread of its own, as long as the process lives."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._pid = os.getpid()
        self._closed = False
        parent = tempfile.gettempdir()
        if len(parent.encode()) >= _MAX_FOLDER_BYTES:
            parent = "/tmp"  # noqa: S108 - mkdtemp makes a folder of its own, 0700
        self._folder = tempfile.mkdtemp(prefix="txpool-", dir=parent)
        #: What Spark's processes pass to `ask_driver`.
        self.address = str(Path(self._folder, "driver"))
        self._listener = Listener(self.address, _FAMILY, backlog=64)
        threading.Thread(target=self._serve, name="txpool-driver-server", daemon=True).start()
        atexit.register(self.close)

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                threading.Thread(
                    target=self._answer_connection, args=[connection], name="txpool-driver-server", daemon=True
                ).start()
            except Exception as error:
                if self._closed:
                    return
                # There are too many open files or threads at the moment. Go on, since the client waits.
                logger.warning("a request of one of Spark's processes could not be accepted: %s", described(error))
                sleep(_ACCEPT_RETRY_SECONDS)

    def _answer_connection(self, connection: Connection) -> None:
        with connection:
            request = None
            try:
                request = connection.recv()
                reply = True, self._answer(request)
            except EOFError:  # the client has ended
                return
            except Exception as error:
                reply = False, (_picklable(error), getattr(error, "__notes__", []))
            try:
                connection.send(reply)
            except OSError as error:
                logger.warning("the process that sent %s has ended: %s", type(request).__name__, described(error))

    def close(self) -> None:
        """Accept no more requests, and remove the folder. A forked child's call does nothing."""
        if os.getpid() == self._pid:
            self._closed = True
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def ask_driver(address: str, request: Any) -> Any:
    """Send a request to the driver's process, and return its answer. Raises what the driver raised.

    OperationalError if the driver's process does not answer.
    """
    try:
        if os.stat(Path(address).parent).st_uid != os.geteuid():  # another's, in place of one whose driver has ended
            raise PermissionError(f"{address} is another user's")
        with Client(address, _FAMILY) as connection:
            connection.send(request)
            succeeded, reply = connection.recv()
    except (OSError, EOFError) as error:
        raise OperationalError(
            f"the driver's process does not answer ({described(error)}): it has ended, or this is not its "
            "machine. What it had not decided rolls back"
        ) from error
    if succeeded:
        return reply
    failure, notes = reply
    failure.__notes__ = notes  # psycopg's errors lose their notes when they are pickled
    raise failure


def _picklable(error: Exception) -> Exception:
    """The error, or an OperationalError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in the same line
    except Exception:
        return OperationalError(described(error))
    return error
