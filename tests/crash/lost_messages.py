"""A transaction, a message of which is struck at on its way; and what is expected of one that decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.crash.site import DONE, UNDONE, UNKNOWN, World
from tests.support.proxy import Proxy, Strike
from txpool import failpoints

#: libpq's parameters by which a dead network is noticed within seconds.
IMPATIENT = {"tcp_user_timeout": 500, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 1}

#: What the caller is told, and whether it ends committed in truth.
Outcome = tuple[str, bool]
#: Of a message that decides, by what becomes of it, where nobody asks for the truth while the network is broken.
DECIDING: Mapping[Strike, Outcome] = {
    Strike.CUT_BEFORE: (UNDONE, False),
    Strike.CUT_AFTER: (DONE, True),
    Strike.DELAYED: (DONE, True),
    Strike.BLACK_HOLE: (UNKNOWN, False),
    Strike.DEAF: (UNKNOWN, True),
    Strike.LATE: (UNKNOWN, True),
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
    def struck(self) -> str:
        """The database on whose way it is."""
        return (*self.reads, *self.names)[0]


def struck(world: World, proxy: Proxy, statement: Statement, how: Strike) -> str:
    """A transaction whose statement is struck at; what its caller is told. The one before it warms everything up."""

    def attempt(number: int) -> str:
        return world.attempt(number, *statement.names, doing=lambda: world.read(statement.reads))

    assert attempt(0) == DONE
    proxy.strike(statement.needle, how)
    if statement.rolls_back:
        failpoints.arm("coordinator.prepared", "raise")
    said = attempt(1)
    failpoints.disarm()
    assert proxy.struck.wait(10)
    return said
