"""A transaction, one message of which is lost or delayed; and the outcome expected where that message decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.crash.site import DONE, UNDONE, UNKNOWN, CrashSite
from tests.support.proxy import NetworkFault, Proxy, drops_packets
from txpool import failpoints

#: libpq's parameters by which a dead network is noticed within seconds.
IMPATIENT = {"tcp_user_timeout": 500, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 1}

#: What the caller is told, and whether it ends committed in truth.
Outcome = tuple[str, bool]
#: Of a message that decides, by what becomes of it, where nobody asks for the truth while the network is broken.
DECIDING: Mapping[NetworkFault, Outcome] = {
    NetworkFault.CUT_BEFORE: (UNDONE, False),
    NetworkFault.CUT_AFTER: (DONE, True),
    NetworkFault.DELAYED: (DONE, True),
    NetworkFault.BLACK_HOLE: (UNKNOWN, False),
    NetworkFault.DEAF: (UNKNOWN, True),
    NetworkFault.LATE: (UNKNOWN, True),
}


@dataclass(frozen=True)
class Statement:
    """A statement, known by some bytes of it, in a transaction over these databases."""

    needle: bytes
    names: tuple[str, ...]
    rolls_back: bool = False
    #: Databases that it only reads.
    reads: tuple[str, ...] = ()

    @property
    def database(self) -> str:
        """The database it is sent to."""
        return (*self.reads, *self.names)[0]


def attempt_with_fault(world: CrashSite, proxy: Proxy, statement: Statement, how: NetworkFault) -> str:
    """The outcome that the caller is told where the fault meets this statement; a first transaction opens sessions."""

    def attempt(number: int) -> str:
        return world.attempt(number, *statement.names, doing=lambda: world.read(statement.reads))

    if how in (NetworkFault.BLACK_HOLE, NetworkFault.DEAF) and not drops_packets():
        pytest.skip("missing: root, who alone may drop packets here")  # the kernel is to see that none is acknowledged
    assert attempt(0) == DONE
    proxy.fail_at(statement.needle, how)
    if statement.rolls_back:
        failpoints.arm("coordinator.prepared", "raise")
    said = attempt(1)
    failpoints.disarm()
    assert proxy.failed.wait(60)
    return said
