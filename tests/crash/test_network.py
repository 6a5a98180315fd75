"""The network fails at each statement that ends a transaction, before and after the server has executed it.

All of it over a log in a folder; over one on a server, past the fault, a sample, and all with TXPOOL_CRASH_FULL=1.
A log that is behind the fault itself is test_log_server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.proxy import Proxy, Strike
from tests.crash.world import World
from txpool import failpoints

SAMPLE = 5
#: A dead network is noticed within seconds.
_IMPATIENT = "\n".join(
    f"driver.{key}"
    for key in ("tcp_user_timeout = 500", "keepalives_idle = 1", "keepalives_interval = 1", "keepalives_count = 1")
)


@dataclass(frozen=True)
class Statement:
    """A statement on its way to one database (the first), in a transaction over these."""

    needle: bytes
    names: tuple[str, ...]
    rolls_back: bool = False


PREPARE = Statement(b"prepare transaction", ("one", "two"))
COMMIT_PREPARED = Statement(b"commit prepared", ("one", "two"))
ROLLBACK_PREPARED = Statement(b"rollback prepared", ("one", "two"), rolls_back=True)
MARKED_COMMIT = Statement(b"commit\0", ("book", "one", "two"))
ONE_PHASE = Statement(b"commit\0", ("one",))

DONE, UNDONE, UNKNOWN = "committed", "rolled back", "in doubt"
#: What the caller is told, and how it ends in truth.
EXPECTED = {
    ("PREPARE", PREPARE): {
        Strike.CUT_BEFORE: (UNDONE, False),
        Strike.CUT_AFTER: (UNDONE, False),
        Strike.DELAYED: (DONE, True),
        Strike.BLACK_HOLE: (UNDONE, False),
        Strike.DEAF: (UNDONE, False),
        Strike.LATE: (UNDONE, False),
    },
    ("COMMIT-PREPARED", COMMIT_PREPARED): dict.fromkeys(Strike, (DONE, True)),
    ("ROLLBACK-PREPARED", ROLLBACK_PREPARED): dict.fromkeys(Strike, (UNDONE, False)),
    ("marked-COMMIT", MARKED_COMMIT): {
        Strike.CUT_BEFORE: (UNDONE, False),
        Strike.CUT_AFTER: (DONE, True),
        Strike.DELAYED: (DONE, True),
        Strike.BLACK_HOLE: (UNKNOWN, False),
        Strike.DEAF: (UNKNOWN, True),
        Strike.LATE: (UNKNOWN, True),
    },
    ("one-phase-COMMIT", ONE_PHASE): {
        Strike.CUT_BEFORE: (UNKNOWN, False),
        Strike.CUT_AFTER: (UNKNOWN, True),
        Strike.DELAYED: (DONE, True),
        Strike.BLACK_HOLE: (UNKNOWN, False),
        Strike.DEAF: (UNKNOWN, True),
        Strike.LATE: (UNKNOWN, True),
    },
}
CASES = [
    pytest.param(statement, how, *expected, id=f"{name}-{how.name}")
    for (name, statement), outcomes in EXPECTED.items()
    for how, expected in outcomes.items()
]


@pytest.fixture(params=["sqlite", "sql"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    proxy = Proxy(world.server.port)
    yield proxy
    proxy.close()


def strike(world: World, proxy: Proxy, statement: Statement, how: Strike) -> str:
    """A transaction whose statement is struck at; what its caller is told. The one before it warms everything up."""
    assert world.attempt(0, *statement.names) == DONE
    proxy.strike(statement.needle, how)
    if statement.rolls_back:
        failpoints.arm("coordinator.prepared", "raise")
    said = world.attempt(1, *statement.names)
    failpoints.disarm()
    assert proxy.struck.is_set()
    return said


@pytest.mark.parametrize(("statement", "how", "said", "committed"), CASES)
def test_a_fault_at_a_statement(
    world: World,
    proxy: Proxy,
    statement: Statement,
    how: Strike,
    said: str,
    committed: bool,
    evidence: Evidence,
) -> None:
    cleanup = "\ncmr.immediate-cleanup = true" if statement is MARKED_COMMIT else ""
    world.describe(statement.names[0], port=proxy.port, more=_IMPATIENT + cleanup)
    with world.coordinator() as manager:
        assert strike(world, proxy, statement, how) == said
        proxy.repair(how)
        world.settle(manager)
        world.scan()
        # Nothing waits for the end of the process.
        assert world.prepared() == []
        assert world.holders(1) == (set(statement.names) if committed else set())
    world.quiet()
    assert not world.scan().errors
    assert world.assert_settled(1, statement.names, said) is committed
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.parametrize("how", list(Strike), ids=lambda how: how.name)
def test_a_process_dies_before_the_network_is_repaired(
    world: World, proxy: Proxy, how: Strike, evidence: Evidence
) -> None:
    """Recovery comes while the marked COMMIT may still be on its way: it may only tell what stays true."""
    names = MARKED_COMMIT.names
    world.describe("book", port=proxy.port, more=_IMPATIENT)
    with world.coordinator():
        said = strike(world, proxy, MARKED_COMMIT, how)
    assert world.scan().rolled_back == () or how is Strike.CUT_BEFORE
    before = world.holders(1)
    proxy.repair(how)
    world.quiet()
    world.scan()
    committed = world.assert_settled(1, names, said)
    assert before in (set(), set(names) if committed else set(), {"book"} if committed else set())
    evidence.add(Count.NETWORK_FAULTS)
