"""The network fails at each statement that ends a transaction, before and after the server has executed it.

All of it over a log in a folder; over one on a server, past the fault, a sample, and all with TXPOOL_CRASH_FULL=1.
A log that is behind the fault itself is test_log_server's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.lost_messages import DECIDING, IMPATIENT, Statement, struck
from tests.crash.site import DONE, UNDONE, UNKNOWN, World
from tests.support.proxy import Proxy, Strike

SAMPLE = 5
_IMPATIENT = "\n".join(f"driver.{key} = {value}" for key, value in IMPATIENT.items())

#: Each on its way to the first of its databases.
PREPARE = Statement(b"prepare transaction", ("one", "two"))
COMMIT_PREPARED = Statement(b"commit prepared", ("one", "two"))
ROLLBACK_PREPARED = Statement(b"rollback prepared", ("one", "two"), rolls_back=True)
MARKED_COMMIT = Statement(b"commit\0", ("book", "one", "two"))
ONE_PHASE = Statement(b"commit\0", ("one",))
ASKED = Statement(b"pg_current_xact_id_if_assigned() is null", ("two", "three"), reads=("one",))
READER_COMMIT = Statement(b"commit\0", ("two", "three"), reads=("one",))
READER_ROLLBACK = Statement(b"rollback\0", ("two", "three"), rolls_back=True, reads=("one",))

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
    ("asked", ASKED): {how: (DONE, True) if how is Strike.DELAYED else (UNDONE, False) for how in Strike},
    ("reader-COMMIT", READER_COMMIT): dict.fromkeys(Strike, (DONE, True)),
    ("reader-ROLLBACK", READER_ROLLBACK): dict.fromkeys(Strike, (UNDONE, False)),
    ("COMMIT-PREPARED", COMMIT_PREPARED): dict.fromkeys(Strike, (DONE, True)),
    ("ROLLBACK-PREPARED", ROLLBACK_PREPARED): dict.fromkeys(Strike, (UNDONE, False)),
    ("marked-COMMIT", MARKED_COMMIT): DECIDING,
    ("one-phase-COMMIT", ONE_PHASE): {
        **DECIDING,
        Strike.CUT_BEFORE: (UNKNOWN, False),
        Strike.CUT_AFTER: (UNKNOWN, True),
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
    world.describe(statement.struck, port=proxy.port, more=_IMPATIENT + cleanup)
    with world.coordinator() as manager:
        assert struck(world, proxy, statement, how) == said
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
        said = struck(world, proxy, MARKED_COMMIT, how)
    assert world.scan().rolled_back == () or how is Strike.CUT_BEFORE
    before = world.holders(1)
    proxy.repair(how)
    world.quiet()
    world.scan()
    committed = world.assert_settled(1, names, said)
    assert before in (set(), set(names) if committed else set(), {"book"} if committed else set())
    evidence.add(Count.NETWORK_FAULTS)
