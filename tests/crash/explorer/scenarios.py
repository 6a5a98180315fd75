"""What is explored: the shape of a transaction, and how much may go wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEDGER = "ledger"
_NAMES = ("orders", "audit", "stock")


@dataclass(frozen=True)
class Scenario:
    """One configuration. The numbers bound how often each kind of fault occurs in one execution."""

    name: str
    branches: int
    marked: bool = False
    #: A last resource commits before the decision: the marked database's local transaction, without a mark.
    last: bool = False
    #: Recovery ends what a living process has left prepared, however young that is.
    overdue: bool = False
    #: Branches that Spark tasks have prepared before the commit begins.
    tasks: int = 0
    #: The first so many branches are named before their first statement, as XA does it: for the log as the decider.
    early: int = 0
    #: The task is a retry, which adopts what it finds that an earlier attempt has prepared.
    retries: bool = False
    #: A task attempt that nobody has heard of, whose PREPARE is still on its way.
    loser: bool = False
    #: Branches that vote read-only.
    abstaining: int = 0
    #: The last so many of the databases have only been read in, and so has the marked one.
    readers: int = 0
    marked_reads: bool = False
    #: All are asked whether they have only read, those that have written, too.
    asked: bool = False
    #: Whether the databases tell how a branch that is gone has ended (PostgreSQL does).
    evidence: bool = True
    #: Whether nobody else can end a branch while the session that prepared it is connected (MariaDB).
    holds: bool = False
    recoverers: int = 1
    #: What a person does to it by hand, at any time: "rollback", "commit".
    operator: str = ""
    #: The transaction is to roll back from the start.
    rolls_back: bool = False
    #: Commands whose fate their sender does not know: not executed, executed with the reply lost, executed late.
    fates: int = 1
    crashes: int = 1
    #: Leases lost: recovery takes the coordinator for dead, and it goes on.
    leases: int = 1
    cuts: int = 0
    #: The disk forgets what was not synced when the power is lost, and a sync may fail.
    disk: bool = False
    #: The fault that the coordinator meets is a KeyboardInterrupt.
    interrupts: bool = False
    #: A database may vote no, and the log may refuse.
    refusals: bool = False
    #: How often the marked datasource's url may lead to a copy for a while, for whoever connects then.
    wrong_urls: int = 0
    #: Incarnations expire as soon as they may.
    expires: bool = False
    #: A person may roll a decided branch back in its database.
    meddles: bool = False
    #: How often a server fails over to a standby: to one that has all, or to one that lacks a branch that is decided.
    failovers: int = 0
    #: Whether a branch whose COMMIT was not answered sends it once more by itself, as PostgreSQL's does.
    asks_again: bool = False
    #: How often somebody who owns nothing may prepare a branch under a name that says something to us.
    forges: int = 0
    #: Whether the server does not tell who has prepared it (the role was dropped).
    ownerless: bool = False
    #: Recovery's role may end whatever is prepared.
    superuser: bool = False
    #: Recovery has a marked datasource, too, that has no part in the transaction.
    beside: bool = False
    #: The node has never prepared there before: it is noted in the log first.
    unnoted: bool = False
    #: The last database that prepares is not in recovery's configuration.
    unconfigured: bool = False

    @property
    def opened(self) -> tuple[str, ...]:
        return _NAMES[: self.branches]

    @property
    def reading(self) -> frozenset[str]:
        """Where only reads were done."""
        names = self.opened[len(self.opened) - self.readers :]
        return frozenset((*names, LEDGER) if self.marked_reads else names)

    @property
    def writing(self) -> tuple[str, ...]:
        """Where the transaction prepares, and marks, itself."""
        return tuple(name for name in self.opened if name not in self.reading)

    @property
    def faultless(self) -> bool:
        """Whether nothing fails, and nobody does anything by hand."""
        return not (self.fates or self.crashes or self.leases or self.cuts or self.refusals or self.operator)

    @property
    def decides(self) -> bool:
        """Whether the marked datasource does."""
        return self.marked and not self.marked_reads

    @property
    def adopted(self) -> tuple[str, ...]:
        return tuple(f"task{number}" for number in range(self.tasks))

    @property
    def missing(self) -> tuple[str, ...]:
        """What recovery's configuration lacks."""
        return self.opened[-1:] if self.unconfigured else ()

    @property
    def noted(self) -> tuple[str, ...]:
        """Where the log says from the start that our node prepares: a driver notes it before its tasks begin."""
        return self.names[self.branches :] if self.unnoted else self.names

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.opened, *self.adopted, *(("zombie",) if self.loser else ()))


ONE = Scenario("one", 1, recoverers=0, leases=0)
TWO = Scenario("two", 2)
MARKED = Scenario("one+marked", 1, marked=True)
MARKED_TWO = Scenario("two+marked", 2, marked=True)
TASKS = Scenario("one+task", 1, tasks=1)
POINTER = Scenario("task+marked", 0, tasks=1, marked=True)
EARLY = Scenario("one named early+marked", 1, early=1, marked=True)

LAST = Scenario("one+last", 1, last=True)
OVERDUE = replace(TWO, name="two, overdue", overdue=True, leases=0)
OVERDUE_POINTER = replace(
    POINTER, name="task+marked, overdue, two recoverers", overdue=True, fates=0, leases=0, recoverers=2
)
#: A person writes an abort record while recovery reads.
BY_HAND_BESIDE = replace(
    POINTER, name="task+marked, rollback by hand beside a scan", operator="rollback", fates=0, crashes=0, leases=0
)
#: Nothing fails, and nothing dies but at the end.
OVERDUE_LAST = replace(LAST, name="one+last, overdue", overdue=True, fates=0, crashes=0, leases=0)

FORGED = replace(TWO, name="two, forged", forges=1, beside=True, leases=0)
FORGED_MARKED = replace(MARKED, name="one+marked, forged", forges=1)
FORGED_TWO = replace(MARKED_TWO, name="two+marked, forged", fates=0, leases=0, forges=1)
ADOPTED = replace(TASKS, name="one+task, a retry adopts, forged", retries=True, fates=0, forges=1)
READER = Scenario("two, and one that reads", 3, readers=1, asked=True, recoverers=1, fates=1)
MARKED_READER = replace(MARKED_TWO, name="two, and marked that reads", marked_reads=True, leases=0)
UNNOTED = replace(TWO, name="two, one by its note", unnoted=True, unconfigured=True)

NO_EVIDENCE = replace(TWO, name="two, no evidence", evidence=False)
#: What a person has ended by hand shows at least to the coordinator, whose first COMMIT does not find it.
UNTOLD = replace(NO_EVIDENCE, name="two, no evidence, a person meddles", meddles=True, fates=0, crashes=0, leases=0)
FAILOVER = replace(TWO, name="two, a failover", failovers=1, leases=0, asks_again=True)
ASKS_AGAIN = replace(NO_EVIDENCE, name="two, no evidence, asks again", asks_again=True)

#: Every shape, with bounds that leave the whole of it explored in seconds.
SCENARIOS = (
    ONE,
    replace(ONE, name="marked alone", branches=0, marked=True),
    TWO,
    replace(TWO, name="two, interrupted", interrupts=True, leases=0),
    replace(TWO, name="two, votes and cuts", refusals=True, cuts=1, leases=0),
    replace(TWO, name="two, one read-only", abstaining=1),
    NO_EVIDENCE,
    replace(TWO, name="two, held", evidence=False, holds=True, leases=0),
    replace(TWO, name="two, disk", disk=True, fates=1, leases=0),
    replace(TWO, name="two, two recoverers", recoverers=2, fates=0),
    Scenario("three", 3, fates=0),
    MARKED,
    replace(MARKED, name="one+marked, interrupted", interrupts=True, leases=0),
    replace(MARKED, name="one+marked, cut", cuts=1, leases=0),
    replace(MARKED, name="one+marked, disk", disk=True, leases=0),
    replace(MARKED, name="one+marked, held", evidence=False, holds=True, leases=0),
    replace(MARKED, name="one+marked, two recoverers", recoverers=2, fates=0),
    replace(MARKED, name="one+marked, wrong url", wrong_urls=1, leases=0),
    replace(MARKED_TWO, fates=0),
    TASKS,
    replace(TASKS, name="one+task, a loser", loser=True, fates=0),
    replace(TASKS, name="two tasks", branches=0, tasks=2),
    POINTER,
    replace(POINTER, name="one+task+marked", branches=1, fates=0),
    replace(POINTER, name="task+marked, wrong url", wrong_urls=1, leases=0),
    replace(POINTER, name="task+marked, rolls back", rolls_back=True),
    EARLY,
    replace(EARLY, name="one named early+marked, cut", cuts=1, leases=0),
    replace(EARLY, name="one named early+marked, interrupted", interrupts=True, leases=0),
    replace(EARLY, name="one named early+marked, held", evidence=False, holds=True, leases=0),
    replace(EARLY, name="one named early+marked, two recoverers", recoverers=2, fates=0),
    replace(EARLY, name="one named early+marked, wrong url", wrong_urls=1, leases=0),
    replace(EARLY, name="one named early, one late+marked", branches=2, fates=0),
    replace(EARLY, name="one named early, one late", branches=2, marked=False, leases=0),
    replace(EARLY, name="one named early, and marked that reads", branches=2, marked_reads=True, asked=True, leases=0),
    *(
        replace(shape, name=f"{shape.name}, expiring", expires=True, recoverers=2, fates=0)
        for shape in (TWO, MARKED, POINTER, EARLY)
    ),
    replace(POINTER, name="task+marked, expiring, late commands", expires=True),
    replace(TWO, name="two, a person meddles", meddles=True, leases=0),
    UNTOLD,
    FAILOVER,
    replace(FAILOVER, name="two, a failover, no evidence", evidence=False),
    replace(FAILOVER, name="one+task, a failover", branches=1, tasks=1, fates=0),
    replace(FAILOVER, name="one+marked, a failover", branches=1, marked=True, fates=0),
    ASKS_AGAIN,
    replace(NO_EVIDENCE, name="two, no evidence, two recoverers", recoverers=2, fates=0, leases=0),
    replace(ASKS_AGAIN, name="one+marked, no evidence, asks again", branches=1, marked=True, fates=1),
    replace(ASKS_AGAIN, name="one+task, no evidence, asks again", branches=1, tasks=1, fates=1),
    replace(MARKED, name="one+marked, a person meddles", meddles=True, leases=0),
    *(
        replace(
            shape, name=f"{shape.name}, {verb} by hand", operator=verb, recoverers=0, fates=2 if verb == "commit" else 1
        )
        for shape in (TWO, MARKED, POINTER, EARLY)
        for verb in ("rollback", "commit")
    ),
    LAST,
    replace(LAST, name="one+last, nothing fails", fates=0, crashes=0, leases=0),
    replace(LAST, name="two+last, cut", branches=2, cuts=1, fates=0, leases=0),
    replace(LAST, name="one+last, interrupted", interrupts=True, leases=0),
    replace(LAST, name="one+last, votes", refusals=True, leases=0),
    replace(LAST, name="task+last", branches=0, tasks=1),
    replace(LAST, name="one+last, two recoverers", recoverers=2, fates=0),
    replace(LAST, name="one+last, rollback by hand", operator="rollback", recoverers=0),
    BY_HAND_BESIDE,
    OVERDUE,
    replace(OVERDUE, name="two, overdue, a lease", fates=0, leases=1),
    replace(OVERDUE, name="two, overdue, no evidence", evidence=False),
    replace(OVERDUE, name="two, overdue, held", evidence=False, holds=True),
    replace(OVERDUE, name="two, overdue, cut", fates=0, cuts=1),
    replace(OVERDUE, name="one+marked, overdue", branches=1, marked=True),
    replace(OVERDUE, name="one+marked, overdue, cut", branches=1, marked=True, fates=0, cuts=1),
    replace(OVERDUE, name="one+marked, overdue, two recoverers", branches=1, marked=True, fates=0, recoverers=2),
    replace(OVERDUE, name="one named early+marked, overdue", branches=1, early=1, marked=True),
    replace(OVERDUE, name="one+task, overdue", branches=1, tasks=1),
    OVERDUE_POINTER,
    replace(OVERDUE_POINTER, name="task+marked, overdue, a lease", recoverers=1, leases=1),
    OVERDUE_LAST,
    replace(OVERDUE_LAST, name="one+last, overdue, a fate", fates=1, crashes=1),
    replace(OVERDUE_LAST, name="task+last, overdue", branches=0, tasks=1),
    FORGED,
    replace(FORGED, name="two, forged, a lease", fates=0, leases=1),
    replace(FORGED, name="two, forged twice", fates=0, forges=2),
    replace(FORGED, name="two, forged, nobody's", fates=0, ownerless=True),
    replace(FORGED, name="two, forged, recovery is a superuser", superuser=True, fates=0),
    FORGED_MARKED,
    replace(FORGED_MARKED, name="one+marked, forged twice", fates=0, leases=0, forges=2),
    FORGED_TWO,
    replace(FORGED_MARKED, name="one+marked, forged, rollback by hand", operator="rollback", recoverers=0, fates=0),
    replace(TASKS, name="one+task, a loser, forged", loser=True, fates=0, forges=1),
    ADOPTED,
    replace(POINTER, name="task+marked, forged", forges=1, fates=0),
    UNNOTED,
    replace(UNNOTED, name="two, one by its note, forged", forges=1, fates=0, leases=0),
    replace(UNNOTED, name="one+marked, by its note", branches=1, marked=True),
    replace(READER, leases=0),
    replace(READER, name="two, and one that reads, a lease", fates=0),
    replace(READER, name="one, and one that reads", branches=2, recoverers=0, leases=0, fates=2, cuts=1),
    replace(READER, name="two that read", branches=2, readers=2, recoverers=0, leases=0, fates=2, cuts=1),
    replace(READER, name="one, and one that reads, interrupted", branches=2, interrupts=True, recoverers=0, leases=0),
    replace(READER, name="one that reads, and marked", branches=1, marked=True, recoverers=0, leases=0, cuts=1),
    replace(READER, name="one, one that reads, and marked", branches=2, marked=True, leases=0),
    replace(READER, name="one that reads, and a task", branches=1, tasks=1),
    replace(MARKED_READER, asked=True),
    replace(MARKED_READER, name="one, and marked that reads", branches=1, asked=True, recoverers=0),
    replace(TWO, name="two, asked", asked=True, refusals=True, cuts=1, leases=0),
    # Two commands of unknown fate, which is where most of what can go wrong does.
    *(
        replace(shape, name=f"{shape.name}, two fates", fates=2, leases=leases)
        for shape, leases in ((TWO, 1), (MARKED, 1), (TASKS, 0))
    ),
)

#: Those with the most states, which are more than all the others have.
LARGEST = frozenset({
    "two, two recoverers",
    "one named early+marked, two recoverers",
    "two, expiring",
    "task+marked, expiring",
    "one named early+marked, expiring",
    "two, a failover",
    "two, rollback by hand",
    "two, commit by hand",
    "task+marked, rollback by hand",
    "task+marked, commit by hand",
    "one named early+marked, rollback by hand",
    "one named early+marked, commit by hand",
    "two, forged",
    "two, forged twice",
    "one+marked, forged",
    "one+marked, forged, rollback by hand",
    "one+task, a loser, forged",
    "two, one by its note",
    "two, two fates",
    "one+last, two recoverers",
    "one+last, rollback by hand",
    "task+marked, overdue, two recoverers",
})  # fmt: skip


def deeper(scenario: Scenario, depth: int) -> Scenario:
    """The same with more faults, and from depth 2 on with a second recoverer."""
    if depth < 1 or scenario.name == UNTOLD.name:  # with any other fault, nobody needs to see what a person did
        return scenario
    return replace(
        scenario,
        fates=scenario.fates + (depth + 1) // 2,
        leases=max(scenario.leases, 1) if scenario.branches + scenario.tasks + scenario.marked > 1 else 0,
        forges=scenario.forges + (depth > 1 and scenario.forges == 1),
        recoverers=max(scenario.recoverers, 2) if depth > 1 and scenario.recoverers else scenario.recoverers,
    )
