"""The exit codes of the command `txpool`."""

from __future__ import annotations

from enum import IntEnum


class TxpoolExitCode(IntEnum):
    """How the command ended. Numbers that `txpool-recovery` has as well mean the same there."""

    OK = 0
    WRONG = 1  #: a count of the demo is wrong, or the check has found a fault
    USAGE = 2  #: the command line is wrong, or what the demo needs is not installed
    CONFIGURATION = 3  #: a file is wrong, so what it describes was not checked
    UNREACHABLE = 5  #: a database could not be connected to
    REFUSED = 6  #: a pool has refused it; nothing was done to that pool
    WARNING = 20  #: nothing is wrong, and there are warnings
    NOT_FOUND = 21  #: no running process has such a pool; no such message is parked
    UNKNOWN = 22  #: a process has not answered in time: whether it does what it was asked is unknown
