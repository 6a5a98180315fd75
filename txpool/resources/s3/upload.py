"""The file objects that users write to: what is written goes into an upload in parts."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from txpool.errors import OperationalError
from txpool.resources.s3.manifest import Upload

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: The size of a part: the least is 5 MiB, and an object has 10,000 at most, so that later ones are larger.
PART: Final = 8 * 1024 * 1024
_STEP: Final = 1000


class SendsParts(Protocol):
    """Whoever answers for uploads."""

    def require_active(self) -> object:
        """An error if nothing more may be written."""

    def is_open(self) -> bool:
        """Whether anything may still be sent."""

    def send(self, upload: Upload, number: int, content: bytes) -> str:
        """Send one part; what the store calls it."""


class ObjectFile(io.BufferedIOBase):
    """Bytes on their way into an upload. They are whole once it is closed without an error."""

    def __init__(self, work: SendsParts, upload: Upload) -> None:
        super().__init__()
        self.name = upload.name
        self.whole = False
        self._work = work
        self._upload = upload
        self._pending = bytearray()
        self._parts: list[str] = []
        self._torn = False
        self._written = 0
        self.at_start = False
        self._process = os.getpid()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """Only to a text's encoder, which begins with a byte order mark if it is told that it is at the start."""
        return self.at_start

    def tell(self) -> int:
        return self._written

    def upload(self, *, overwrite: bool) -> Upload:
        return self._upload._replace(parts=tuple(self._parts), overwrite=overwrite)

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of it; whole parts are sent. After an error nothing more is taken."""
        if self.closed:
            raise ValueError(f"{self.name} is closed")
        self._work.require_active()
        self._begin()
        with memoryview(data) as view:
            count = view.nbytes
            self._written += count
            self._pending += view.cast("B") if view.contiguous else view.tobytes()
        size = PART * (1 + len(self._parts) // _STEP)
        while len(self._pending) >= size:
            self._send(size)
        self._torn = False
        return count

    def close(self) -> None:
        """Send the rest. Of a transaction that has ended, and in a forked child, nothing is sent."""
        if self.closed:
            return
        try:
            if self._process == os.getpid() and self._work.is_open():
                self._begin()
                if self._pending or not self._parts:
                    self._send(len(self._pending))
                self.whole, self._torn = True, False
        finally:
            super().close()

    def __del__(self) -> None:
        """Nothing is sent by a finaliser: what was not closed is a vote to roll back."""

    def _begin(self) -> None:
        if self._torn or self._process != os.getpid():
            raise OperationalError(
                f"an earlier write to {self.name} has failed, or was another process's, and it is not known what has "
                "arrived: the transaction can only roll back"
            )
        self._torn = True  # until the end of this step, whatever ends it

    def _send(self, size: int) -> None:
        part = self._work.send(self._upload, len(self._parts) + 1, bytes(self._pending[:size]))
        self._parts.append(part)
        del self._pending[:size]


class TextObject(io.TextIOWrapper):
    """Text on its way into an upload."""

    def __del__(self) -> None:
        """As of its bytes."""


def opened_object(file: ObjectFile, mode: str, **options: Any) -> IO[Any]:
    """As the built-in open() returns it: bytes, or text."""
    if "b" not in mode:
        file.at_start = True
        try:
            return TextObject(file, **{"encoding": "utf-8", **options})
        finally:
            file.at_start = False
    return file  # type: ignore[return-value]  # it has what IO[bytes] has
