"""Every failpoint, killed and raised at, over every shape of transaction; and every point of recovery itself.

Every point is killed and raised at in some shapes, over a log in a folder, and killed at in one over a log on a server;
in others with each seed (TXPOOL_CRASH_SEED), and in all with TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.fork_server import ForkServer
from tests.crash.site import PREPARING, CrashSite
from tests.support.sampling import FULL
from txpool import failpoints

#: How many transactions crash before recovery comes.
BATCH = 10

#: The transactions that are run by default where the log is on a server.
ON_A_SERVER = (PREPARING[:1], PREPARING[:2], (*PREPARING[:2], "ledger"))

#: What happens first, so that a point is reached at all, and whether the transaction commits then.
PLAIN = ""
ROLLS_BACK = "coordinator.prepared=raise"
UNACCOUNTED = "coordinator.prepared=raise, branch.rollback-sent=raise"
UNKNOWN_NO = "log.record=raise"
UNKNOWN_YES = "log.recorded=raise"
UNREACHED = "branch.commit-sent=raise"

#: The points of a transaction: what happens first, the point, and whether a kill there comes after the decision.
IN_ANY = (
    (PLAIN, "coordinator.begin", False),
    (PLAIN, "log.note", False),
    (PLAIN, "log.timeout", False),
    (PLAIN, "branch.prepare-sent", False),
    (PLAIN, "coordinator.preparing", False),
    (PLAIN, "coordinator.prepared", False),
    (PLAIN, "coordinator.decided", True),
    (PLAIN, "branch.commit-sent", True),
    (PLAIN, "coordinator.committing", True),
    (PLAIN, "coordinator.one-committed", True),
    (PLAIN, "coordinator.committed", True),
    (ROLLS_BACK, "coordinator.rolling-back", False),
    (ROLLS_BACK, "branch.rollback-sent", False),
    (UNACCOUNTED, "log.finish", False),
    (UNREACHED, "log.finish", True),
)
IN_THE_LOG = (
    (PLAIN, "log.record", False),
    (PLAIN, "log.recorded", True),
    (UNKNOWN_NO, "log.abort", False),
    (UNKNOWN_YES, "log.abort", True),
)
BESIDE_READERS = (
    (PLAIN, "readers.apart", False),
    (PLAIN, "readers.committing", True),
    (ROLLS_BACK, "readers.rolling-back", False),
)
#: Which databases are written, and which are only read beside these.
READ = (
    (PREPARING[:2], PREPARING[2:]),
    (PREPARING[:2], (*PREPARING[2:], "book")),
    ((*PREPARING[:1], "ledger"), PREPARING[1:2]),
)
IN_THE_MARK = (
    (PLAIN, "marked.row", False),
    (PLAIN, "coordinator.marked", False),
    (PLAIN, "marked.commit", False),
    (PLAIN, "marked.committed", True),
    (PLAIN, "marked.forget", True),
)
#: Met only beside a last resource, which a crash may tear: tests/integration/recovery/test_last_resource.py.
BESIDE_LAST = {"log.last"}


@dataclass(frozen=True)
class InterruptedTransaction:
    """One transaction, and the failpoints armed in it."""

    names: tuple[str, ...]
    before: str
    point: str
    action: str
    nth: int
    #: How it ends where it is killed there.
    committed: bool
    #: Databases that it only reads.
    reads: tuple[str, ...] = ()

    @property
    def marked(self) -> bool:
        return self.names[-1] not in PREPARING

    @property
    def points(self) -> str:
        return ", ".join(filter(None, (self.before, f"{self.point}={self.action}@{self.nth}")))

    def __str__(self) -> str:
        return f"{'+'.join(self.names)}, reading {'+'.join(self.reads) or 'nothing'}: {self.points}"


def scenarios() -> Iterator[InterruptedTransaction]:
    marked: tuple[tuple[str, ...], ...] = ((), ("ledger",), ("book",))
    for count in (1, 2, 3):
        for mark in marked if FULL or count == 2 else marked[:2]:
            names = (*PREPARING[:count], *mark)
            one_phase = len(names) == 1
            steps = IN_ANY[:1] if one_phase else (*IN_ANY, *(IN_THE_MARK if mark else IN_THE_LOG))
            for before, point, committed in steps:
                each = (FULL and point.startswith("branch.")) or point == "coordinator.one-committed"
                for nth in range(1, count + 1 if each else 2):
                    for action in ("kill", "raise"):
                        yield InterruptedTransaction(names, before, point, action, nth, committed)
    for names, reads in READ:
        for before, point, committed in BESIDE_READERS:
            for action in ("kill", "raise"):
                yield InterruptedTransaction(names, before, point, action, 1, committed, reads)
    for point, committed in (("readers.apart", False), ("readers.committing", True)):
        yield InterruptedTransaction(PREPARING[:1], PLAIN, point, "kill", 1, committed, PREPARING[1:2])


def chosen(
    scenarios: Iterable[InterruptedTransaction], kind: Callable[[InterruptedTransaction], object], count: dict[str, int]
) -> list[InterruptedTransaction]:
    """By the seed, so many of each action at each point, among transactions of each kind."""
    groups: dict[object, list[InterruptedTransaction]] = defaultdict(list)
    for each in scenarios:
        groups[each.before, each.point, each.action, kind(each)].append(each)
    chance = random.Random(SEED)
    return [
        each
        for group in groups.values()
        for each in chance.sample(group, min(count.get(group[0].action, 0), len(group)))
    ]


@pytest.fixture(params=["sqlite", "sql", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Crashes:
    """Scenarios that were played in a world, each with a number of its own, until recovery is checked."""

    def __init__(self, world: CrashSite, fork_server: ForkServer, evidence: Evidence) -> None:
        self.world = world
        self.fork_server = fork_server
        self.evidence = evidence
        self.hit: set[str] = set()
        self._played: list[tuple[int, InterruptedTransaction, str, str]] = []
        self._count = 0

    def play(self, scenario: InterruptedTransaction, *, in_loop: bool = False) -> None:
        self._count += 1
        how = {"reads": scenario.reads, "in_loop": in_loop}
        answer = self.fork_server.transact(self._count, scenario.names, scenario.points, **how)  # type: ignore[arg-type]
        if scenario.action == "kill":
            assert answer == {"status": -9}, f"{scenario} was not reached: {answer}"
            self.hit.add(scenario.point)
        else:
            assert scenario.point in answer["points"], f"{scenario} was not reached: {answer}"
            self.hit.update(answer["points"])
        self._played.append((self._count, scenario, answer.get("said", "in doubt"), answer.get("gtrid", "")))

    def check(self) -> int:
        """Recovery while the survivors live, and after they are gone; how many have committed."""
        self.world.scan()
        waiting = " ".join(self.world.prepared())
        for number, scenario, said, gtrid in self._played:
            holders = self.world.holders(number)
            if said == "rolled back":
                assert holders == set(), f"{scenario}: told that it rolled back"
            elif said == "committed" and gtrid not in waiting:
                assert holders == set(scenario.names), f"{scenario}: told that it committed"
        self.fork_server.release()
        self.world.wait_for_sessions()
        report = self.world.scan()
        assert not report.errors
        assert not report.heuristics
        rows = self.world.numbers()
        committed = 0
        for number, scenario, said, _ in self._played:
            holders = {name for name, numbers in rows.items() if number in numbers}
            assert holders in (set(), set(scenario.names)), f"{scenario}: torn, only {holders} hold it"
            assert said in ("in doubt", "committed" if holders else "rolled back"), f"{scenario}: told {said}"
            if scenario.action == "kill":
                assert bool(holders) is scenario.committed, f"{scenario}: committed is {bool(holders)}"
            committed += bool(holders)
        self.world.assert_nothing_is_left()
        self.evidence.add(Count.KILLS, sum(scenario.action == "kill" for _, scenario, _, _ in self._played))
        self._played.clear()
        return committed


@pytest.fixture
def crashes(world: CrashSite, fork_server: ForkServer, evidence: Evidence) -> Crashes:
    return Crashes(world, fork_server, evidence)


@pytest.mark.costly
def test_every_point_of_a_transaction(crashes: Crashes, store: str) -> None:
    everything = list(scenarios())
    if store == "sqlite" and not FULL:
        everything = chosen(everything, lambda each: each.marked, {"kill": 1, "raise": 1})
    elif not FULL:
        on_a_server = (each for each in everything if each.names in ON_A_SERVER)
        everything = chosen(on_a_server, lambda each: "any", {"kill": 1})
    print(f"seed {SEED}")
    committed = 0
    for first in range(0, len(everything), BATCH):
        for scenario in everything[first : first + BATCH]:
            crashes.play(scenario)
        committed += crashes.check()
    print(f"{len(everything)} transactions interrupted, {committed} of them committed; {len(crashes.hit)} points")
    crashes.evidence.hit(crashes.hit)
    elsewhere = ("delta.", "files.", "lake.", "recovery.", "s3.")
    assert {point for point in failpoints.POINTS if not point.startswith(elsewhere)} - crashes.hit == BESIDE_LAST


@pytest.mark.costly
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_every_point_of_a_tasks_transaction(crashes: Crashes, store: str) -> None:
    """The same coordinator, whose waits are an event loop's."""
    pytest.importorskip("greenlet")
    everything = [each for each in scenarios() if FULL or len(each.names) - each.marked == 2]
    if not FULL:
        everything = chosen(everything, lambda each: "any", {"kill": 1, "raise": 1})
    committed = 0
    for first in range(0, len(everything), BATCH):
        for scenario in everything[first : first + BATCH]:
            crashes.play(scenario, in_loop=True)
        committed += crashes.check()
    print(
        f"{len(everything)} transactions of tasks interrupted, {committed} of them committed; {len(crashes.hit)} points"
    )
    assert {point for _, point, _ in (*IN_ANY, *IN_THE_LOG, *IN_THE_MARK, *BESIDE_READERS)} <= crashes.hit


LEFT_BEHIND = (
    InterruptedTransaction(PREPARING[:2], PLAIN, "coordinator.prepared", "kill", 1, False),
    InterruptedTransaction(PREPARING, PLAIN, "coordinator.one-committed", "kill", 1, True),
    InterruptedTransaction((*PREPARING[:2], "ledger"), PLAIN, "coordinator.prepared", "kill", 1, False),
    InterruptedTransaction((*PREPARING[:2], "ledger"), PLAIN, "marked.committed", "kill", 1, True),
    InterruptedTransaction((*PREPARING[:2], "book"), PLAIN, "marked.commit", "kill", 1, False),
)
#: Recovery's points, and how often each is reached on its way through what is left behind.
IN_RECOVERY = {
    "recovery.listed": 2,
    "recovery.fenced": 2,
    "recovery.read": 2,
    "recovery.tombstone": 3,
    "recovery.branch": 11,
    "branch.commit-sent": 5,
    "branch.rollback-sent": 6,
    "recovery.forget": 2,
}


def faults_in_recovery() -> Iterator[tuple[str, str, int]]:
    for point, times in IN_RECOVERY.items():
        for nth in range(1, times + 1):
            yield point, "kill", nth
            yield point, "raise", nth


@pytest.mark.costly
def test_every_point_of_recovery(crashes: Crashes, store: str) -> None:
    """Recovery is killed, or fails, at its own points; the next one goes on where that has stopped."""
    faults = list(faults_in_recovery())
    if not FULL:
        chance = random.Random(SEED)
        points = [*IN_RECOVERY] if store == "sqlite" else chance.sample([*IN_RECOVERY], len(IN_RECOVERY) // 2)
        actions = ("kill", "raise") if store == "sqlite" else ("kill",)
        faults = [(at, chance.choice(actions), chance.randint(1, IN_RECOVERY[at])) for at in points]
    print(f"seed {SEED}")
    for point, action, nth in faults:
        for scenario in LEFT_BEHIND:
            crashes.play(scenario)
        crashes.world.wait_for_sessions()
        answer = crashes.fork_server.scan(f"{point}={action}@{nth}")
        if action == "kill":
            assert answer == {"status": -9}, f"recovery did not come to {point} for the {nth}. time: {answer}"
            crashes.evidence.add(Count.KILLS)
        else:
            assert point in answer["points"]
        assert crashes.check() == 2
    print(f"recovery interrupted {len(faults)} times, at {len(IN_RECOVERY)} points")
    crashes.evidence.hit(IN_RECOVERY)
    assert {point for point in failpoints.POINTS if point.startswith("recovery.")} <= IN_RECOVERY.keys()
