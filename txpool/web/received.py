"""A request's body that must be as long as its Content-Length says.

If a client has gone away early, servers hand on the part of the body that has arrived. An application that took it
for the whole would commit what the client has not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsgiref.types import InputStream, WSGIEnvironment


class Received:
    """The `wsgi.input` of a request that has a Content-Length. Errors: ConnectionAbortedError if it was cut off."""

    def __init__(self, stream: InputStream, length: int) -> None:
        self._stream = stream
        self._length = self._remaining = length
        self._cut = False

    def require_uncut(self) -> None:
        """Raise if the application has read up to the early end."""
        if self._cut:
            raise ConnectionAbortedError(
                f"the client went away after {self._length - self._remaining:,} of {self._length:,} bytes of its "
                "request: what was done in its transaction rolls back"
            )

    def read(self, size: int | None = -1, /) -> bytes:
        parts, wanted = [], self._limit(size)
        while wanted:
            part = self._check_part(self._stream.read(wanted), complete=True)
            wanted -= len(part)
            parts.append(part)
        return b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        wanted = self._limit(size)
        if not wanted:
            return b""
        line = self._stream.readline(wanted)
        return self._check_part(line, complete=line.endswith(b"\n") or len(line) == wanted)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def _limit(self, size: int | None) -> int:
        self.require_uncut()
        return self._remaining if size is None or size < 0 else min(size, self._remaining)

    def _check_part(self, part: bytes, *, complete: bool) -> bytes:
        self._remaining -= len(part)
        self._cut = not part or not complete
        self.require_uncut()
        return part


def received(environ: WSGIEnvironment) -> Received | None:
    """The body of this request; None if its length is not given, as with chunks, whose end the server checks."""
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ.get("wsgi.input")
    if stream is None or not (length.isascii() and length.isdigit()):
        return None
    return Received(stream, int(length))
