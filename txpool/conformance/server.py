"""A server that the kit may kill and start: it is given one, and never looks for one."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import Protocol

from txpool.errors import ConfigurationError

_LONGEST = 300.0  # seconds that one command may take


class KillableServer(Protocol):
    """The server of a datasource, for the cases that kill it. Both return once it is done; an error ends the case."""

    def kill(self) -> None:
        """End the server at once, as kill -9 or a power failure does: it must not end its sessions first."""

    def start(self) -> None:
        """Start it again over the same data, at the same address."""


@dataclass(frozen=True, slots=True)
class CommandServer:
    """A server that two commands kill and start. They run without a shell."""

    kill_command: str
    start_command: str

    def kill(self) -> None:
        _run(self.kill_command)

    def start(self) -> None:
        _run(self.start_command)


def _run(command: str) -> None:
    words = shlex.split(command)
    if not words:
        raise ConfigurationError("the command that kills or starts the server is empty")
    # Not captured: a server that goes into the background would keep the pipe open.
    done = subprocess.run(  # noqa: S603 - the user's own command
        words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None, timeout=_LONGEST
    )
    if done.returncode:
        raise ConfigurationError(f"the command `{command}` ended with code {done.returncode}")
