"""The rules of the protocol, each left out once: whoever tests the rule must turn red.

Where a rule lives in the coordinator, in recovery or in the memory store, the explorer runs over the real code without
it. Where it lives in SQL or in a driver, the explorer's model has a flaw of the same kind, which shows what the rule is
there for, and a test of the real thing turns red over the real code without it (`python -m tests.crash.mutations RULE`
runs it).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import pytest

from tests.crash.explorer.scenarios import MARKED, ONE, POINTER, TASKS, TWO, Scenario
from tests.crash.mutating import Edit, applied


@dataclass(frozen=True)
class Mutation:
    """A rule left out, and who must notice."""

    rule: str
    left_out: str
    edits: tuple[Edit, ...] = ()
    #: What the model's own databases and stores leave out.
    flaw: str = ""
    #: Where the explorer looks, and what the violation is called that it must find there.
    scenario: Scenario | None = None
    found: str = "MIX"
    #: A test that runs over the edited code in a process of its own, and fails there.
    test: str = ""
    #: Edits for that test alone.
    real: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.left_out}"


_GATHER = "recovery.evidence:gather"
_MARKED_END = "recovery.modules:end"
_TOMBSTONE = "recovery.modules:tombstone"
_C = "txpool.coordinator:Coordinator."

_LISTED = "    listings, silent = sites.listings()\n"
_LIVES = "    lives = log.incarnations()\n"
_FINISHED = "    finished = log.finished()\n"
_READ = "    pointers, decisions, aborted = log.pointers(), log.decisions(), log.aborted()\n"
_ROWS = "    rows, mute = sites.rows()\n"

_DISK = replace(TWO, name="two, disk", disk=True, leases=0)
_HELD = replace(TWO, name="two, held", evidence=False, holds=True, leases=0)

MUTATIONS = (
    Mutation(
        "1",
        "liveness is tested and fenced after decisions are read",
        (
            Edit(_GATHER, _FINISHED + _READ + _ROWS, ""),
            Edit(_GATHER, _LIVES, _FINISHED + _READ + _ROWS + _LIVES),
        ),
        scenario=TWO,
    ),
    Mutation(
        "2",
        "finished marks are read after decisions",
        (Edit(_GATHER, _FINISHED + _READ + _ROWS, _READ + _ROWS + _FINISHED),),
        scenario=replace(TWO, fates=2, leases=0),
    ),
    Mutation(
        "3",
        "branches are listed after decisions",
        (Edit(_GATHER, _READ, ""), Edit(_GATHER, _LISTED, _READ + _LISTED)),
        scenario=TWO,
    ),
    Mutation(
        "4",
        "no decision is written before the first COMMIT",
        (Edit(_C + "_decide", "self._decider.record(self._unit.gtrid, [b.record for b in voted])", "pass"),),
        scenario=TWO,
    ),
    Mutation(
        "5",
        "no finished mark where something is unaccounted for",
        (Edit(_C + "_let_go", "log.finish(self._unit.gtrid)", "pass"),),
        scenario=TWO,
        found="stays prepared",
    ),
    Mutation(
        "5b",
        "a finished mark that could not be written is not tried again",
        (Edit("txpool.coordinator:Coordinator._let_go", "log, wanted =", "self._result.untold = False\n    log, wanted ="),),
        scenario=replace(TWO, fates=2, leases=0),
        found="stays prepared",
    ),
    Mutation("6", "absent is believed without a later listing (MariaDB)", flaw="believed", scenario=_HELD),
    Mutation(
        "6b",
        "a marked row goes with a listing that was taken before the answers",
        (Edit("recovery.modules:clean", "work.sites.listings()", "work.evidence.listings, work.evidence.silent"),),
        flaw="believed",
        scenario=replace(MARKED, name="one+marked, held", evidence=False, holds=True, leases=0),
    ),
    Mutation(
        "7",
        "recovery forgets what has not answered",
        (Edit("recovery.work:Work.settle", "return all(answers)", "return True"),),
        scenario=TWO,
    ),
    Mutation(
        "7b",
        "the coordinator forgets what has not answered",
        (Edit(_C + "_let_go", "if self._unit.loose_ends or set(self._ended.values()) - {wanted}:", "if False:"),),
        scenario=TWO,
    ),
    Mutation(
        "8",
        "no pointer before the row, where branches were named before",
        (Edit(_C + "_mark", "self._required_log.point(self._unit.gtrid, marked.datasource)", "pass"),),
        scenario=POINTER,
    ),
    Mutation(
        "9",
        "the tombstone has a key of its own",
        (
            Edit(
                _TOMBSTONE,
                "return table.tombstone(gtrid)",
                'return __import__("dataclasses").replace(table.tombstone(gtrid + "0"), gtrid=gtrid)',
            ),
        ),
        scenario=MARKED,
        test="tests/integration/test_marked.py::test_tombstone_meets_the_row_and_makes_it_durable",
        real=(Edit("txpool.resources.xids:Xids.tombstone", '_row(gtrid, "abort", "[]")', '_row(gtrid + "0", "abort", "[]")'),),
    ),
    Mutation(
        "10",
        "a decision looks for the fence in a snapshot",
        flaw="snapshot",
        scenario=TWO,
        test="tests/integration/test_log_sql.py::test_10_a_decision_waits_for_the_fence_in_flight_and_is_refused",
        real=(Edit("txpool.log.sql:_RECORD", " FOR SHARE", ""),),
    ),
    Mutation(
        "11",
        "a decision is not refused when fenced",
        (Edit("txpool.log.memory:MemoryLog._admit", "is Life.FENCED", "is None"),),
        scenario=TWO,
        test="tests/unit/test_log_store.py::test_11_a_decision_is_refused_when_its_incarnation_was_fenced_by_another",
        real=(Edit("txpool.log.sqlite:_RECORD", " AND fenced = 0", ""),),
    ),
    Mutation(
        "12",
        "an unknown decision is looked up",
        (
            Edit(
                _C + "_establish",
                "settled = self._decider.abort(self._unit.gtrid)",
                "settled = Settled.COMMITTED if self._unit.gtrid in self._log.decisions() else Settled.ABORTED",
            ),
        ),
        scenario=TWO,
    ),
    Mutation(
        "13",
        "recovery forgets a living owner's decision that is not finished",
        (Edit("recovery.modules:DecidedModule._finish", "if not evidence.ended(gtrid):", "if False:"),),
        scenario=TWO,
        found="FALSE: rollback",
    ),
    Mutation(
        "14",
        "in doubt, it is marked finished before the abort record has won",
        (
            Edit(
                _C + "_establish",
                "    settled = self._decider",
                "    self._log.finish(self._unit.gtrid)\n    settled = self._decider",
            ),
        ),
        scenario=replace(TWO, fates=2),
    ),
    Mutation(
        "15",
        "a fenced coordinator that finds no decision says rolled back",
        (Edit(_C + "_establish", "elif self._fenced():", "elif False:"),),
        scenario=TWO,
        found="FALSE: rollback",
    ),
    Mutation(
        "15b",
        "the fence is read before the abort record has won",
        (
            Edit(_C + "_establish", "    settled = self._decider", "    fenced = self._fenced()\n    settled = self._decider"),
            Edit(_C + "_establish", "elif self._fenced():", "elif fenced:"),
        ),
        scenario=TWO,
        found="FALSE: rollback",
    ),
    Mutation(
        "16",
        "recovery looks for the row, and writes no tombstone",
        (
            Edit(
                _TOMBSTONE,
                "return table.tombstone(gtrid)",
                'return {row.gtrid: row for row in table.read()}.get(gtrid) or MarkedRow(gtrid, "", False)',
            ),
        ),
        scenario=MARKED,
    ),
    Mutation(
        "17",
        "a tombstone that was met is taken for a row",
        (
            Edit(_MARKED_END, "if row.committed:", "if row.committed or work.evidence.row(row.gtrid) is not None:"),
            Edit(
                _MARKED_END,
                "row.branches,",
                "row.branches or tuple(branch.record for branch in work.evidence.seen(row.gtrid)),",
            ),
        ),
        scenario=replace(MARKED, name="one+marked, two recoverers", recoverers=2, fates=0),
        test="tests/integration/test_marked.py::test_tombstone_meets_anothers_tombstone",
        real=(Edit("txpool.resources.xids:Xids.tombstone", '"on conflict (xid) do update set ', '"on conflict (xid) do update set kind = \'commit\', '),),
    ),
    Mutation(
        "18",
        "who meets a row does not make it durable",
        flaw="unsynced tombstone",
        scenario=replace(MARKED, name="one+marked, disk", disk=True, leases=0),
        test="tests/integration/test_marked.py::test_meeting_a_row_writes_to_the_disk",
        real=(Edit("txpool.resources.xids:Xids.tombstone", "do update set confirmed = met.confirmed + 1", "do nothing"),),
    ),
    Mutation(
        "19",
        "the row is written after the prepares, with no look for a fence",
        (
            Edit(_C + "_prepare", "    if self._marked is not None:\n        self._mark(self._marked)\n", ""),
            Edit(
                _C + "_prepare",
                "    doom = self._unit.doomed()",
                "    if self._marked is not None:\n        self._mark(self._marked)\n    doom = self._unit.doomed()",
            ),
        ),
        scenario=MARKED,
    ),
    Mutation(
        "19b",
        "no look for a fence between row and COMMIT, where branches were prepared before",
        (Edit(_C + "_mark", "if self._unit.adopted and self._fenced():", "if False:"),),
        scenario=POINTER,
    ),
    Mutation("20", "INSERT and COMMIT of the row are one message", flaw="one message", scenario=MARKED),
    Mutation(
        "21",
        "the row names the votes so far",
        (Edit(_C + "_mark", "(*self._branches, *self._unit.adopted)", "self._voted"),),
        scenario=MARKED,
    ),
    Mutation(
        "22",
        "one prepared branch gets no decision",
        (
            Edit(
                _C + "_decide",
                "    if self._marked is None and not voted:\n        self.phase = Phase.ENDED\n",
                "    if self._marked is None and len(voted) < 2:\n        self.phase = Phase.COMMIT\n",
            ),
        ),
        scenario=replace(TWO, name="two, one read-only", readers=1),
        found="FALSE",
    ),
    Mutation(
        "23",
        "recovery acts on what it reads without a durable write",
        (Edit("recovery.evidence:_Fences.build", "self._log.fence(name)", "pass"),),
        scenario=_DISK,
        test="tests/unit/test_log_sqlite.py::test_18_23_24_whoever_meets_what_was_written_writes_it_again",
        real=(Edit("txpool.log.sqlite:_fence", "fenced = fenced + 1", "fenced = 1"),),
    ),
    Mutation(
        "24",
        "recovery presumes abort without a durable fence",
        (
            Edit(
                "recovery.evidence:_Fences.build",
                "self._log.fence(name)",
                "self._log.decisions() and self._log.fence(name)",
            ),
        ),
        scenario=_DISK,
    ),
    Mutation(
        "25",
        "the deciding process is vouched for by its own incarnation only",
        test="tests/unit/test_log_store.py::"
        "test_25_another_process_may_decide_for_the_living_incarnation_that_named_the_gtrid",
        real=(
            Edit("txpool.log.sqlite:SqliteLog.record", "split_gtrid(gtrid).incarnation", "self._own and self._own.name"),
            Edit("txpool.log.memory:MemoryLog._admit", "split_gtrid(gtrid).incarnation", "self._own"),
        ),
    ),
    Mutation(
        "26",
        "a task rolls back after PREPARE",
        test="tests/integration/test_subordinate.py::test_a_branch_that_votes_no_leaves_the_others_to_the_coordinator",
        real=(
            Edit(
                "txpool.subordinate:Subordinate.prepare",
                "        return [branch.record for branch in voted]\n",
                "        return [branch.record for branch in voted]\n    except BaseException:\n"
                "        for branch in working:\n            branch.start_rollback()\n"
                "            branch.await_rollback()\n        raise\n",
            ),
        ),
    ),
    Mutation(
        "27",
        "a fenced incarnation leaves the registry",
        (
            Edit(
                "txpool.log.memory:MemoryLog.fence",
                "self._disk.lives[incarnation] = Life.FENCED",
                "del self._disk.lives[incarnation]",
            ),
        ),
        scenario=TWO,
        found="stays prepared",
    ),
    Mutation(
        "28",
        "losers of a decided transaction stay",
        (Edit("recovery.work:Work.settle", 'self.roll_back(branch, "the decision does not name it")', "pass"),),
        scenario=replace(TASKS, name="one+task, a loser", loser=True, fates=0),
        found="stays prepared",
    ),
    Mutation(
        "30",
        "a lost reply to a one-phase COMMIT is a rollback",
        (Edit(_C + "_one_phase", "if answer in (Answer.UNKNOWN, Answer.LOST):", "if False:"),),
        scenario=ONE,
        found="FALSE: rollback",
    ),
    Mutation(
        "no fsync",
        "a decision is told to be durable, and is not synced",
        flaw="no sync",
        scenario=_DISK,
        test="tests/unit/test_log_sqlite.py::test_the_log_is_durable_with_each_commit",
        real=(Edit("txpool.log.folder:LogFolder.connect", "synchronous = FULL", "synchronous = OFF"),),
    ),
    Mutation(
        "interrupt",
        "a KeyboardInterrupt in or after the decision rolls back",
        (
            Edit(
                _C + "_run",
                "self.phase = _AFTER_FAILURE[self.phase]",
                "self.phase = Phase.ROLLBACK if self.phase in (Phase.DECIDE, Phase.COMMIT) else _AFTER_FAILURE[self.phase]",
            ),
            Edit(_C + "_await", "except BaseException", "except Exception"),
        ),
        scenario=replace(TWO, name="two, interrupted", interrupts=True, leases=0),
    ),
    Mutation(
        "false yes",
        "PREPARE that is answered by ROLLBACK is believed",
        flaw="false yes",
        scenario=replace(TWO, name="two, votes and cuts", noes=True, cuts=1, leases=0),
        test="tests/integration/test_postgresql_branch.py::test_failed_transaction_votes_no_where_psycopg_says_yes",
        real=(
            Edit("txpool.resources.postgresql:PostgreSQLBranch.start_prepare", "session.status != INTRANS", "False"),
            Edit(
                "txpool.resources.postgresql:PostgreSQLBranch.await_prepare",
                'raise self._no("the database answered PREPARE TRANSACTION by ROLLBACK")',
                "return Vote.COMMIT",
            ),
        ),
    ),
)


def main(rule: str) -> int:
    """Run a mutation's test over the real code without the rule; pytest's exit code (1 is red)."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.rule == rule)
    with applied((*mutation.edits, *mutation.real)):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", mutation.test]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
