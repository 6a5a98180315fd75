"""The network fails at each statement that ends a transaction, before and after the server has executed it.

One in five of each test's cases, over a log in a folder and over one on a server, past the fault; others with each seed
(TXPOOL_CRASH_SEED); all with TXPOOL_CRASH_FULL=1. A log that is behind the fault itself is test_log_server's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.lost_messages import DECIDING, IMPATIENT, Statement, attempt_with_fault
from tests.crash.site import DONE, UNDONE, UNKNOWN, CrashSite
from tests.support.proxy import NetworkFault, Proxy

pytestmark = pytest.mark.part(5)
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
        NetworkFault.CUT_BEFORE: (UNDONE, False),
        NetworkFault.CUT_AFTER: (UNDONE, False),
        NetworkFault.DELAYED: (DONE, True),
        NetworkFault.BLACK_HOLE: (UNDONE, False),
        NetworkFault.DEAF: (UNDONE, False),
        NetworkFault.LATE: (UNDONE, False),
    },
    ("asked", ASKED): {how: (DONE, True) if how is NetworkFault.DELAYED else (UNDONE, False) for how in NetworkFault},
    ("reader-COMMIT", READER_COMMIT): dict.fromkeys(NetworkFault, (DONE, True)),
    ("reader-ROLLBACK", READER_ROLLBACK): dict.fromkeys(NetworkFault, (UNDONE, False)),
    ("COMMIT-PREPARED", COMMIT_PREPARED): dict.fromkeys(NetworkFault, (DONE, True)),
    ("ROLLBACK-PREPARED", ROLLBACK_PREPARED): dict.fromkeys(NetworkFault, (UNDONE, False)),
    ("marked-COMMIT", MARKED_COMMIT): DECIDING,
    ("one-phase-COMMIT", ONE_PHASE): {
        **DECIDING,
        NetworkFault.CUT_BEFORE: (UNKNOWN, False),
        NetworkFault.CUT_AFTER: (UNKNOWN, True),
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
def proxy(world: CrashSite) -> Iterator[Proxy]:
    proxy = Proxy(world.server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize(("statement", "how", "said", "committed"), CASES)
def test_a_fault_at_a_statement(
    world: CrashSite,
    proxy: Proxy,
    statement: Statement,
    how: NetworkFault,
    said: str,
    committed: bool,
    evidence: Evidence,
) -> None:
    cleanup = "\ncmr.immediate-cleanup = true" if statement is MARKED_COMMIT else ""
    world.describe(statement.database, port=proxy.port, more=_IMPATIENT + cleanup)
    with world.coordinator() as manager:
        assert attempt_with_fault(world, proxy, statement, how) == said
        proxy.repair(how)
        world.wait_until_resolved(manager)
        world.scan()
        # Nothing waits for the end of the process.
        assert world.prepared() == []
        assert world.holders(1) == (set(statement.names) if committed else set())
    world.wait_for_sessions()
    assert not world.scan().errors
    assert world.assert_settled(1, statement.names, said) is committed
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("how", list(NetworkFault), ids=lambda how: how.name)
def test_a_process_dies_before_the_network_is_repaired(
    world: CrashSite, proxy: Proxy, how: NetworkFault, evidence: Evidence
) -> None:
    """Recovery comes while the marked COMMIT may still be on its way: it may only tell what stays true."""
    names = MARKED_COMMIT.names
    world.describe("book", port=proxy.port, more=_IMPATIENT)
    with world.coordinator():
        said = attempt_with_fault(world, proxy, MARKED_COMMIT, how)
    assert world.scan().rolled_back == () or how is NetworkFault.CUT_BEFORE
    before = world.holders(1)
    proxy.repair(how)
    world.wait_for_sessions()
    world.scan()
    committed = world.assert_settled(1, names, said)
    assert before in (set(), set(names) if committed else set(), {"book"} if committed else set())
    evidence.add(Count.NETWORK_FAULTS)
