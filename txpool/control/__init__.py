"""The control of running processes' pools: each process listens on a unix socket of its own in `control.folder`.

Off unless the configuration has that key. The folder belongs to the processes' user and nobody else may enter it, and
each process asks the kernel who is at the other end: only its own user and root are served. A request is one line of
JSON and so is its answer; nothing that comes in is executed or unpickled.
"""

from __future__ import annotations

from txpool.control import server

__all__ = ["server"]
