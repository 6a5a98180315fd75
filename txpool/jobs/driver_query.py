"""Whether a job was begun within a transaction: a Spark task asks, and the driver answers, in one datagram each.

A task on the driver's machine asks over the loopback. In a cluster the driver answers where its executors reach it
(spark.driver.host, at a port that the system chooses). The question has gtrids, and the answer has some of them. Both
are signed with a key: another process that has taken the port of an ended driver cannot answer. The key travels with
the functions of the jobs, as a variable of their workers' environment. The jobs' properties, which have the address,
are written into Spark's event log and shown in its UI: a key that stood there would be known to all who read these.
"""

from __future__ import annotations

import atexit
import hmac
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from txpool.errors import described
from txpool.locks import Lock

logger = logging.getLogger("txpool")

_LOOPBACK = "127.0.0.1"
#: Masters whose tasks run on this machine.
_LOCAL_MASTERS = ("local", "local-cluster")
#: The longest datagram: gtrids that were cut off would count as ended.
_MAX_DATAGRAM = 65_535
_SIGNATURE = 32
#: Seconds to wait for each answer before asking again, since datagrams may be lost.
_REPLY_TIMEOUTS = (0.2, 0.4, 0.8, 1.6, 3.0)

#: Called with a stage and gtrids; returns some of these, or None if the answer is not known now.
Responder = Callable[[int, list[str]], list[str] | None]

#: The key with which this process and its jobs sign.
_KEY = secrets.token_hex(16)
#: The variable that has it in a worker's environment.
_VARIABLE = "TXPOOL_DRIVER_KEY"
#: The sockets at which this process answers, by host.
_sockets: dict[str, socket.socket] = {}
_opening = Lock()


def serve(context: Any, responder: Responder) -> str:
    """Answer the tasks of a SparkContext from now on. Returns where they ask, `host:port`; empty after an error.

    Functions that Spark is given from now on bring the key along.
    """
    host = bound = _LOOPBACK
    if str(context.master).partition("[")[0] not in _LOCAL_MASTERS:
        host = str(context._conf.get("spark.driver.host"))
        bound = str(context._conf.get("spark.driver.bindAddress") or host)
    try:
        with _opening:
            if bound not in _sockets:
                _sockets[bound] = _open(bound, responder)
            context.environment[_VARIABLE] = _KEY
            return f"{host}:{_sockets[bound].getsockname()[1]}"
    except OSError as error:
        logger.warning("Spark's tasks cannot ask this process for its transactions: %s: %s", bound, described(error))
        return ""


def ask(address: str, stage: int, gtrids: list[str]) -> list[str] | None:
    """The answer of the driver's process; None without one, or if this process cannot tell whether it is that."""
    key = os.environ.get(_VARIABLE, "")
    host, _, port = address.rpartition(":")
    if not host or not key:
        return None
    number = secrets.token_hex(8)
    with suppress(OSError):
        family, kind, protocol, _, socket_address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(socket_address)
            for wait in _REPLY_TIMEOUTS:
                reply = _ask_once(sock, key, [number, str(stage), *gtrids], wait)
                if reply is not None:
                    return reply
    return None


def _ask_once(sock: socket.socket, key: str, request: list[str], wait: float) -> list[str] | None:
    until = monotonic() + wait
    with suppress(OSError):  # a timeout, or no process has the port
        sock.send(_signed(key, request))
        while True:
            remaining = until - monotonic()
            if remaining <= 0:
                break
            sock.settimeout(remaining)
            reply = _verified(key, sock.recv(_MAX_DATAGRAM))
            if reply and reply[0] == request[0]:
                return reply[1:]
    return None


def _signed(key: str, words: list[str]) -> bytes:
    payload = " ".join(words).encode()
    return hmac.digest(key.encode(), payload, "sha256") + payload


def _verified(key: str, datagram: bytes) -> list[str]:
    """The words of a datagram that is signed with the key; none if it is not."""
    signature, payload = datagram[:_SIGNATURE], datagram[_SIGNATURE:]
    if not hmac.compare_digest(signature, hmac.digest(key.encode(), payload, "sha256")):
        return []
    return payload.decode().split(" ")


def _open(host: str, responder: Responder) -> socket.socket:
    family, kind, protocol, _, socket_address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.bind(socket_address)
    except OSError:
        sock.close()
        raise
    threading.Thread(target=_serve, args=[sock, responder], name="txpool-answers", daemon=True).start()
    return sock


def _serve(sock: socket.socket, responder: Responder) -> None:
    while True:
        try:
            request, sender = sock.recvfrom(_MAX_DATAGRAM)
            number, stage, *gtrids = _verified(_KEY, request)
            reply = responder(int(stage), gtrids)
            if reply is not None:
                sock.sendto(_signed(_KEY, [number, *reply]), sender)
        except ValueError:  # not a request of ours
            continue
        except Exception as error:
            if sock.fileno() < 0:
                return
            logger.warning("a Spark task cannot be answered: %s", described(error))


def _close() -> None:
    """Close the sockets: the program ends, or this is a forked child, whose parent goes on to answer."""
    while _sockets:
        _sockets.popitem()[1].close()


def _after_fork_in_child() -> None:
    global _opening
    _opening = Lock()
    _close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close)
