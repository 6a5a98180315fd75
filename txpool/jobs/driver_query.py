"""Whether a job was begun within a transaction: a Spark task asks, and the driver answers, in one datagram each.

A task that is on the driver's machine asks over the loopback; in a cluster the driver answers where its executors reach
it (spark.driver.host, at a port of the system's choice). What is asked are names, and what is answered is some of them.
Both are signed with a key that jobs carry: whoever has taken the port of a driver that is gone says nothing here.
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

logger = logging.getLogger("txpool")

_LOOPBACK = "127.0.0.1"
#: Masters whose tasks run on this machine.
_HERE = ("local", "local-cluster")
#: As long as a datagram can be: what is cut off would count as ended.
_LONGEST = 65_535
_SIGNATURE = 32
#: Seconds to wait for an answer before it is asked for again: datagrams are lost.
_WAITS = (0.2, 0.4, 0.8, 1.6, 3.0)

#: From a stage and gtrids to some of these; None where that is not known now.
Responder = Callable[[int, list[str]], list[str] | None]

#: What this process and its jobs sign with.
_KEY = secrets.token_hex(16)
#: What this process answers at, by host.
_sockets: dict[str, socket.socket] = {}
_opening = threading.Lock()


def serve(context: Any, answer: Responder) -> str:
    """Where tasks of a SparkContext may ask from now on, `host:port/key`; empty where that cannot be."""
    host = bound = _LOOPBACK
    if str(context.master).partition("[")[0] not in _HERE:
        host = str(context._conf.get("spark.driver.host"))
        bound = str(context._conf.get("spark.driver.bindAddress") or host)
    try:
        with _opening:
            if bound not in _sockets:
                _sockets[bound] = _open(bound, answer)
            return f"{host}:{_sockets[bound].getsockname()[1]}/{_KEY}"
    except OSError as error:
        logger.warning("Spark's tasks cannot ask this process for its transactions: %s: %s", bound, error)
        return ""


def ask(address: str, stage: int, gtrids: list[str]) -> list[str] | None:
    """What the driver's process answers; None where it does not."""
    place, _, key = address.partition("/")
    host, _, port = place.rpartition(":")
    if not host:
        return None
    number = secrets.token_hex(8)
    with suppress(OSError):
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as line:
            line.connect(where)
            for wait in _WAITS:
                answered = _exchange(line, key, [number, str(stage), *gtrids], wait)
                if answered is not None:
                    return answered
    return None


def _exchange(line: socket.socket, key: str, request: list[str], wait: float) -> list[str] | None:
    until = monotonic() + wait
    with suppress(OSError):  # a timeout, or the system says that nobody is there
        line.send(_signed(key, request))
        while (left := until - monotonic()) > 0:
            line.settimeout(left)
            answered = _verified(key, line.recv(_LONGEST))
            if answered and answered[0] == request[0]:
                return answered[1:]
    return None


def _signed(key: str, words: list[str]) -> bytes:
    said = " ".join(words).encode()
    return hmac.digest(key.encode(), said, "sha256") + said


def _verified(key: str, datagram: bytes) -> list[str]:
    """What was said with the key; nothing where that was somebody else."""
    signature, said = datagram[:_SIGNATURE], datagram[_SIGNATURE:]
    if not hmac.compare_digest(signature, hmac.digest(key.encode(), said, "sha256")):
        return []
    return said.decode().split(" ")


def _open(host: str, answer: Responder) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.bind(where)
    except OSError:
        opened.close()
        raise
    threading.Thread(target=_serve, args=[opened, answer], name="txpool-answers", daemon=True).start()
    return opened


def _serve(line: socket.socket, answer: Responder) -> None:
    while True:
        try:
            request, who = line.recvfrom(_LONGEST)
            number, stage, *gtrids = _verified(_KEY, request)
            answered = answer(int(stage), gtrids)
            if answered is not None:
                line.sendto(_signed(_KEY, [number, *answered]), who)
        except ValueError:  # no request of ours
            continue
        except Exception as error:
            if line.fileno() < 0:
                return
            logger.warning("a Spark task cannot be answered: %s", error)


def _close() -> None:
    """The program ends, or this is a forked child, for whom the parent answers."""
    while _sockets:
        _sockets.popitem()[1].close()


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    _close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close)
