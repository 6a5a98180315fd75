"""The rules that recovery keeps, and the fences of the stores, each left out."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.explorer.scenarios import MARKED, POINTER, TWO
from tests.crash.mutating import Edit, Mutation

_GATHER = "recovery.scan.reading:take_snapshot"
_MANY = "tests/integration/recovery/test_many_branches.py"
_MARKED_END = "recovery.scan.modules.transactions:finish_branches"
_TOMBSTONE = "recovery.scan.modules.transactions:tombstone"

_ASKED = "return table.tombstone(gtrid, identity)"

_LISTED = "    listings, unanswered = datasources.listings(log.locations(), log.deciders())\n"
_LIVES = "    incarnations = log.incarnations()\n"
_FINISHED = "    finished = log.finished()\n"
_READ = (
    "    aborted, last_resources = log.aborted(), log.last_resources()\n"
    "    pointers, decisions = log.pointers(), log.decisions()\n"
)
_ROWS = "    rows, without_rows = datasources.rows()\n"

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
        "37",
        "the log is read before the last listing has come, and that is used",
        (
            Edit(_GATHER, _READ, ""),
            Edit(
                _GATHER,
                _LISTED,
                f"{_LISTED}{_READ}    late, unanswered = datasources.listings()\n    listings |= late\n",
            ),
        ),
        scenario=TWO,
        test="tests/unit/recovery/scan/test_workers.py::test_37_a_listing_that_comes_after_the_barrier_is_discarded",
        real=(
            Edit("recovery.scan.datasources.workers:_Worker.wait", "call.until + _GRACE - monotonic()", "3600.0"),
            Edit("recovery.scan.datasources.asking:AskedByWorkers.start", "if name in self._silent:", "if False:"),
        ),
    ),
    Mutation("6", "absent is believed without a later listing (MariaDB)", flaw="believed", scenario=_HELD),
    Mutation(
        "6b",
        "a marked row goes with a listing that was taken before the answers",
        (
            Edit(
                "recovery.scan.modules.transactions:delete_finished",
                "this_pass.datasources.listings()",
                "this_pass.snapshot.listings, this_pass.snapshot.unanswered",
            ),
        ),
        flaw="believed",
        scenario=replace(MARKED, name="one+marked, held", evidence=False, holds=True, leases=0),
    ),
    Mutation(
        "7",
        "recovery forgets what has not answered",
        (Edit("recovery.scan.recovery_pass:RecoveryPass._carried_out", "return all(answers)", "return True"),),
        scenario=TWO,
    ),
    Mutation(
        "7c",
        "a branch whose command a lost connection has not sent is taken for committed",
        test=f"{_MANY}::test_a_server_that_stops_amid_a_pass_is_asked_again_by_the_next",
        real=(
            Edit(
                "txpool.resources.branches.adopted:PhaseTwoConnections.finish",
                "outcomes.pop(branch, _UNKNOWN)",
                "outcomes.pop(branch, BranchOutcome.COMMITTED)",
            ),
        ),
    ),
    Mutation(
        "9",
        "the tombstone has a key of its own",
        (
            Edit(
                _TOMBSTONE,
                _ASKED,
                'row = table.tombstone(gtrid + "0", identity)\n'
                '    return __import__("dataclasses").replace(row, gtrid=gtrid)',
            ),
        ),
        scenario=MARKED,
        test="tests/integration/resources/marked/test_tombstone.py::test_tombstone_meets_the_row_and_makes_it_durable",
        real=(
            Edit(
                "txpool.resources.marked.xids:Xids.tombstone",
                '_new_row(gtrid, "abort", "[]")',
                '_new_row(gtrid + "0", "abort", "[]")',
            ),
        ),
    ),
    Mutation(
        "13",
        "recovery forgets a living owner's decision that is not finished",
        (
            Edit(
                "recovery.scan.modules.transactions:DecidedModule._start",
                "if not snapshot.is_left_to_recovery(gtrid):",
                "if False:",
            ),
        ),
        scenario=TWO,
        found="FALSE",
    ),
    Mutation(
        "16",
        "recovery looks for the row, and writes no tombstone",
        (
            Edit(
                _TOMBSTONE,
                _ASKED,
                'return {row.gtrid: row for row in table.read()}.get(gtrid) or MarkedRow(gtrid, "", False)',
            ),
        ),
        scenario=MARKED,
    ),
    Mutation(
        "17",
        "a tombstone that was met is taken for a row",
        (
            Edit(
                _MARKED_END, "if row.committed:", "if row.committed or this_pass.snapshot.row(row.gtrid) is not None:"
            ),
            Edit(
                _MARKED_END,
                "row.branches,",
                "row.branches or tuple(branch.record for branch in this_pass.snapshot.listed_branches(row.gtrid)),",
            ),
        ),
        scenario=replace(MARKED, name="one+marked, two recoverers", recoverers=2, fates=0),
        test="tests/integration/resources/marked/test_tombstone.py::test_tombstone_meets_anothers_tombstone",
        real=(
            Edit(
                "txpool.resources.driver.marks:Marks.put_tombstone",
                '"confirmed = met.confirmed + 1"',
                "\"kind = 'commit', confirmed = met.confirmed + 1\"",
            ),
        ),
    ),
    Mutation(
        "18",
        "who meets a row does not make it durable",
        flaw="unsynced tombstone",
        scenario=replace(MARKED, name="one+marked, disk", disk=True, leases=0),
        test="tests/integration/resources/marked/test_durability.py::test_meeting_a_row_writes_to_the_disk",
        real=(
            Edit(
                "txpool.resources.driver.marks:Marks.put_tombstone",
                "= met.confirmed + 1",
                "= met.confirmed where false",
            ),
        ),
    ),
    Mutation(
        "23",
        "recovery acts on what it reads without a durable write",
        (Edit("recovery.scan.reading:_Fences.build", "self._log.fence(name)", "pass"),),
        scenario=_DISK,
        test="tests/unit/log/test_sqlite.py::test_18_23_24_whoever_meets_what_was_written_writes_it_again",
        real=(Edit("txpool.log.sqlite.store:_fence", "fenced = fenced + 1", "fenced = 1"),),
    ),
    Mutation(
        "24",
        "recovery presumes abort without a durable fence",
        (
            Edit(
                "recovery.scan.reading:_Fences.build",
                "self._log.fence(name)",
                "self._log.decisions() and self._log.fence(name)",
            ),
        ),
        scenario=_DISK,
    ),
    Mutation(
        "27",
        "a fenced incarnation leaves the registry",
        (
            Edit(
                "txpool.log.memory:MemoryLog.fence",
                "self._disk.states[incarnation] = IncarnationState.FENCED",
                "del self._disk.states[incarnation]",
            ),
        ),
        scenario=TWO,
        found="stays prepared",
    ),
    Mutation(
        "27b",
        "an incarnation that has expired is forgotten",
        (Edit("txpool.log.memory:MemoryLog._expire", "self._disk.expired.add(name)", "pass"),),
        scenario=replace(POINTER, name="task+marked, expiring", expires=True, recoverers=2, fates=0),
        found="MIX",
    ),
    Mutation(
        "heuristic",
        "recovery keeps no record of a branch that a person has ended otherwise",
        (Edit("recovery.scan.recovery_pass:RecoveryPass._keep", "self.log.record_heuristic(*found)", "pass"),),
        scenario=replace(TWO, name="two, a person meddles", meddles=True, leases=0),
        found="UNREPORTED",
    ),
    Mutation(
        "identity",
        "a tombstone goes into whatever table the url leads to today",
        (Edit(_TOMBSTONE, _ASKED, "return table.tombstone(gtrid)"),),
        scenario=replace(MARKED, name="one+marked, wrong url", wrong_urls=1, leases=0),
        test="tests/integration/recovery/test_outcomes.py::test_another_table_of_marks_has_not_answered",
        real=(
            Edit("txpool.resources.marked.xids:Xids._require_identity", "identity and found[0] != identity", "False"),
        ),
    ),
    Mutation(
        "pointer's identity",
        "a pointer does not say which table it points to",
        (
            Edit(
                "txpool.tm.commit.coordinator:Coordinator._mark",
                "make_pointer(marked.datasource, marked.identity())",
                "marked.datasource",
            ),
        ),
        scenario=replace(POINTER, name="task+marked, wrong url", wrong_urls=1, leases=0),
    ),
    Mutation(
        "by hand",
        "a rollback by hand deletes the tombstone of a process that is only taken for dead",
        (
            Edit(
                "recovery.operator.commands:_coordinator_cannot_act",
                "not in (CoordinatorState.ALIVE, CoordinatorState.DEAD)",
                "is not CoordinatorState.ALIVE",
            ),
        ),
        scenario=replace(POINTER, name="task+marked, rollback by hand", operator="rollback", recoverers=0),
    ),
)
