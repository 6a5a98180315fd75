"""The messages of the control: one line of JSON, bounded in bytes and in time."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from txpool.datasource.administration import FLUSH_MODES

#: Bytes of a request and of an answer, at most.
LONGEST_REQUEST, LONGEST_ANSWER = 4096, 1 << 20
#: What a process is asked to do, and the further fields of such a request with their types.
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "list": {},
    "resize": {"pool": str, "min_size": int | None, "max_size": int | None},
    "flush": {"pool": str, "how": str},
    "suspend": {"pool": str},
    "resume": {"pool": str},
}
_LARGEST_SIZE = 1_000_000


class MessageError(ValueError):
    """A message that is not of the form, too long, or not whole in time."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is asked to do; fields that the request does not have are None. A size that is None stays."""

    do: str
    pool: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    how: str | None = None

    @classmethod
    def parse(cls, text: bytes) -> Request:
        """The request of a line. MessageError."""
        fields = decoded(text)
        do = fields.pop("do", None)
        types = REQUESTS.get(do) if isinstance(do, str) else None
        if types is None or fields.keys() != types.keys():
            raise MessageError(f"a request is one of {', '.join(REQUESTS)}, with its own fields")
        if not all(isinstance(fields[name], kind) for name, kind in types.items()):
            raise MessageError(f"a field of {do} is of another type")
        for size in (fields.get("min_size"), fields.get("max_size")):
            if isinstance(size, bool) or not 0 <= (size or 0) <= _LARGEST_SIZE:
                raise MessageError(f"a size is a whole number from 0 to {_LARGEST_SIZE}")
        if fields.get("how", FLUSH_MODES[0]) not in FLUSH_MODES:
            raise MessageError(f"flush is one of {', '.join(FLUSH_MODES)}")
        return cls(do=str(do), **fields)

    def encoded(self) -> bytes:
        """The line of this request."""
        fields = {name: getattr(self, name) for name in REQUESTS[self.do]}
        return encoded({"do": self.do} | fields)


def encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def decoded(text: bytes) -> dict[str, Any]:
    """A JSON object. MessageError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError("it is no JSON") from error
    if not isinstance(found, dict):
        raise MessageError("it is no JSON object")
    return found


def read_line(connection: socket.socket, most: int, timeout: float) -> bytes:
    """One line of at most `most` bytes, within `timeout` seconds as a whole. MessageError, OSError, EOFError."""
    until = monotonic() + timeout
    found = b""
    while not found.endswith(b"\n"):
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole line within {timeout:g} s")
        connection.settimeout(left)
        more = connection.recv(min(65536, most + 1 - len(found)))
        if not more and not found:
            raise EOFError("the other end has closed it")
        if not more:
            raise MessageError("it ends before its line does")
        found += more
        if len(found) > most or b"\n" in found[:-1]:
            raise MessageError(f"a message is one line of at most {most} bytes")
    return found
