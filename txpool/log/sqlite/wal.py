"""Damage in the middle of SQLite's write-ahead log, which SQLite itself ignores without an error.

SQLite reads the log up to the first frame that is not whole, and drops what follows. After a crash that is right: the
torn frames are those of the one transaction that was never synced. But each transaction is synced before the next
begins, so if two commits follow the first frame that is not whole, durable ones are being dropped.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_HEADER = struct.Struct(">8I")  # magic, format, page size, checkpoint number, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, pages after a commit or 0, two salts, two checksums

#: Seconds to wait for another process's checkpoint, which moves a few hundred pages.
_CHECKPOINT_WAIT = 10.0


def damaged(connection: sqlite3.Connection, database: Path) -> bool:
    """Whether durable transactions follow the frames that SQLite recognizes in the write-ahead log.

    Other processes may write meanwhile: it is damage only if two inspections find the same.
    """
    before = _inspect(connection, database)
    return before[1] > 1 and before == _inspect(connection, database)


def _inspect(connection: sqlite3.Connection, database: Path) -> tuple[int, int, bytes]:
    """How many frames SQLite recognizes, how many consecutive commits follow them, and the log's header."""
    recognized = _recognized(connection)
    # Neither log.db nor log.db-shm may be opened here: closing them would drop this process's locks on them.
    with Path(f"{database}-wal").open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return recognized, 0, header
        magic, _, page_size, _, *salts, _, _ = _HEADER.unpack(header)
        file.seek(recognized * (_FRAME.size + page_size), 1)
        frames = iter(lambda: file.read(_FRAME.size + page_size), b"")
        return recognized, _commits(frames, page_size, salts, "<>"[magic & 1]), header


def _commits(frames: Iterator[bytes], page_size: int, salts: list[int], order: str) -> int:
    """The largest number of commits among consecutive frames of this generation.

    A transaction that failed, on a full disk or at its sync, may leave its last frames behind those that have
    overwritten its first ones. That is one commit, and the checksum of no other commit continues its own.
    """
    most = commits = 0
    before = (0, 0)
    for frame in frames:
        if len(frame) < _FRAME.size + page_size:
            break
        _, pages, *found, first, second = _FRAME.unpack_from(frame)
        if found != salts or _checksum(frame[:8] + frame[_FRAME.size :], before, order) != (first, second):
            commits = 0
        commits += pages > 0 and found == salts
        most = max(most, commits)
        before = first, second
    return most


def _checksum(content: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    """SQLite's checksum of a frame, which continues that of the frame before."""
    first, second = before
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for word, following in zip(words, words, strict=True):
        first = first + word + second & 0xFFFFFFFF
        second = second + following + first & 0xFFFFFFFF
    return first, second


def _recognized(connection: sqlite3.Connection) -> int:
    """How many frames SQLite recognizes; waits while another process runs a checkpoint."""
    deadline = time.monotonic() + _CHECKPOINT_WAIT
    while True:
        _, recognized, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if recognized >= 0:
            return int(recognized)
        if time.monotonic() > deadline:
            raise OSError(f"another process has been in a checkpoint for {_CHECKPOINT_WAIT:g} s")
        time.sleep(0.001)
