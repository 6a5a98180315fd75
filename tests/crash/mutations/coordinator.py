"""The rules that the coordinator, its branches and its log keep, each left out."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.explorer.scenarios import EARLY, MARKED, MARKED_TWO, ONE, POINTER, READER, TASKS, TWO
from tests.crash.mutating import Edit, Mutation

_C = "txpool.tm.commit.coordinator:Coordinator."

_ONE_READER = replace(READER, name="one, and one that reads", branches=2, recoverers=0, leases=0)
_DISK = replace(TWO, name="two, disk", disk=True, leases=0)

MUTATIONS = (
    Mutation(
        "4",
        "no decision is written before the first COMMIT",
        (Edit(_C + "_decide", "self._decision_store().record(self._request.gtrid, records)", "pass"),),
        scenario=TWO,
    ),
    Mutation(
        "5",
        "no finished mark where something is unaccounted for",
        (Edit(_C + "_forget", "log.finish(self._request.gtrid)", "pass"),),
        scenario=TWO,
        found="stays prepared",
    ),
    Mutation(
        "5b",
        "a finished mark that could not be written is not tried again",
        (
            Edit(
                "txpool.tm.commit.coordinator:Coordinator._forget",
                "log, decided =",
                "self._result.unreported = False\n    log, decided =",
            ),
        ),
        scenario=replace(TWO, fates=2, leases=0),
        found="stays prepared",
    ),
    Mutation(
        "7b",
        "the coordinator forgets what has not answered",
        (
            Edit(
                _C + "_forget",
                "if self._request.late_branches or not self._unanimous:",
                "if False:",
            ),
        ),
        scenario=TWO,
    ),
    Mutation(
        "8",
        "no pointer before the row, where branches were named before",
        (
            Edit(
                _C + "_mark",
                "self._required_log().point(self._request.gtrid, make_pointer(marked.datasource, marked.identity()))",
                "pass",
            ),
        ),
        scenario=POINTER,
    ),
    Mutation(
        "35",
        "no pointer for a branch that was named early",
        (Edit(_C + "_mark", "if not all_name(", "if self._request.adopted and not all_name("),),
        scenario=EARLY,
        test="tests/unit/tm/test_coordinator_steps.py::"
        "test_35_a_branch_that_was_named_for_the_log_gets_a_pointer_that_goes_after_the_row",
    ),
    Mutation(
        "35b",
        "the fence is not read again where a pointer is written",
        (Edit(_C + "_mark", "if self._pointed and self._fenced()", "if False"),),
        scenario=replace(EARLY, name="one named early+marked, two fates", fates=2),
    ),
    Mutation(
        "10",
        "a decision looks for the fence in a snapshot",
        flaw="snapshot",
        scenario=TWO,
        test="tests/integration/log/test_locks.py::test_10_a_decision_waits_for_the_fence_in_flight_and_is_refused[postgresql]",
        real=(Edit("txpool.resources.postgresql.log.server:RECORD", " FOR SHARE", ""),),
    ),
    Mutation(
        "11",
        "a decision is not refused when fenced",
        (Edit("txpool.log.memory:MemoryLog._require_undecided", "is IncarnationState.FENCED", "is None"),),
        scenario=TWO,
        test="tests/unit/log/test_store.py::test_11_a_decision_is_refused_when_its_incarnation_was_fenced_by_another[sqlite]",
        real=(Edit("txpool.log.sqlite.store:_RECORD", " AND fenced = 0", ""),),
    ),
    Mutation(
        "12",
        "an unknown decision is looked up",
        (
            Edit(
                _C + "_resolve",
                "resolution = self._decision_store().abort(self._request.gtrid)",
                "logged = self._request.gtrid in self._log.decisions()\n"
                "    resolution = Resolution.COMMITTED if logged else Resolution.ABORTED",
            ),
        ),
        scenario=TWO,
    ),
    Mutation(
        "14",
        "in doubt, it is marked finished before the abort record has won",
        (
            Edit(
                _C + "_resolve",
                "    resolution = self._decision_store()",
                "    self._log.finish(self._request.gtrid)\n    resolution = self._decision_store()",
            ),
        ),
        scenario=replace(TWO, fates=2),
    ),
    Mutation(
        "15",
        "a fenced coordinator that finds no decision says rolled back",
        (Edit(_C + "_resolve", "elif self._fenced():", "elif False:"),),
        scenario=TWO,
        found="FALSE",
    ),
    Mutation(
        "15b",
        "the fence is read before the abort record has won",
        (
            Edit(
                _C + "_resolve",
                "    resolution = self._decision_store()",
                "    fenced = self._fenced()\n    resolution = self._decision_store()",
            ),
            Edit(_C + "_resolve", "elif self._fenced():", "elif fenced:"),
        ),
        scenario=TWO,
        found="FALSE",
    ),
    Mutation(
        "19",
        "the row is written after the prepares, with no look for a fence",
        (
            Edit(_C + "_prepare", "    if self._marked is not None:\n        self._mark(self._marked)\n", ""),
            Edit(
                _C + "_prepare",
                "    self.phase = DECIDE",
                "    if self._marked is not None:\n        self._mark(self._marked)\n    self.phase = DECIDE",
            ),
        ),
        scenario=MARKED,
    ),
    Mutation(
        "19b",
        "no look for a fence between row and COMMIT, where branches were prepared before",
        (Edit(_C + "_mark", "if self._pointed and self._fenced():", "if False:"),),
        scenario=POINTER,
    ),
    Mutation("20", "INSERT and COMMIT of the row are one message", flaw="one message", scenario=MARKED),
    Mutation(
        "21",
        "the row names the votes so far",
        (
            Edit(_C + "_mark", "(*self._branches, *self._request.adopted)", "self._prepared"),
            Edit(_C + "_decide", "[b.record for b in voted]", "[b.record for b in voted[:1]]"),
        ),
        scenario=replace(MARKED_TWO, fates=0),
    ),
    Mutation(
        "21b",
        "the row is committed as it was written before the votes",
        flaw="unsealed",
        scenario=replace(MARKED, name="one+marked, a person meddles", meddles=True, leases=0),
        found="UNREPORTED",
        test="tests/integration/resources/marked/test_row.py::"
        "test_the_row_has_the_evidence_of_the_votes_though_it_was_written_before_them[postgresql]",
        real=(
            Edit(
                "txpool.resources.marked.branch:MarkedTransaction.record",
                "self._xids.commit(self._raw, self._row, branches)",
                "self._dialect.commit(self._raw)",
            ),
        ),
    ),
    Mutation(
        "22",
        "one prepared branch gets no decision",
        (
            Edit(
                _C + "_decide",
                "    if self._marked is None and not voted:\n        self._finish_undecided()\n",
                "    if self._marked is None and len(voted) < 2:\n        self.phase = COMMIT\n",
            ),
        ),
        scenario=replace(TWO, name="two, one read-only", abstaining=1),
        found="FALSE",
    ),
    Mutation(
        "25",
        "the deciding process is vouched for by its own incarnation only",
        test="tests/unit/log/test_store.py::"
        "test_25_another_process_may_decide_for_the_living_incarnation_that_named_the_gtrid[sqlite]",
        real=(
            Edit(
                "txpool.log.decisions:DecisionRecords._write",
                "split_gtrid(gtrid).incarnation",
                "current and current.name",
            ),
        ),
    ),
    Mutation(
        "26",
        "a task rolls back after PREPARE",
        test="tests/integration/tm/test_subordinate.py::test_a_branch_that_votes_no_leaves_the_others_to_the_coordinator",
        real=(
            Edit(
                "txpool.tm.subordinate:Subordinate.prepare",
                "            votes[branch] = branch.await_prepare()\n",
                "            votes[branch] = branch.await_prepare()\n    except BaseException:\n"
                "        for branch in working:\n            branch.start_rollback()\n"
                "            branch.await_rollback()\n        raise\n",
            ),
        ),
    ),
    Mutation(
        "28",
        "a coordinator that leaves losers behind marks nothing finished",
        (Edit(_C + "_forget", "if self._request.late_branches or not", "if not"),),
        scenario=replace(TASKS, name="one+task, a loser", loser=True, fates=0),
        found="stays prepared",
        test="tests/unit/recovery/scan/test_rules.py::test_28_a_branch_that_the_decision_does_not_name_rolls_back_beside_it",
        real=(
            Edit(
                "recovery.scan.recovery_pass:RecoveryPass.carry_out",
                'self.start_rollback(branch, "the decision does not name it")',
                "(lambda: None)",
            ),
        ),
    ),
    Mutation(
        "30",
        "a lost reply to a one-phase COMMIT is a rollback",
        (Edit("txpool.tm.commit.one_phase:commit_participant", "if answer is _ROLLED_BACK:", "if True:"),),
        scenario=ONE,
        found="FALSE: rollback",
    ),
    Mutation(
        "no fsync",
        "a decision is told to be durable, and is not synced",
        flaw="no sync",
        scenario=_DISK,
        test="tests/unit/log/test_sqlite.py::test_the_log_is_durable_with_each_commit",
        real=(Edit("txpool.log.sqlite.folder:_make_durable", "synchronous = FULL", "synchronous = OFF"),),
    ),
    Mutation(
        "interrupt",
        "a KeyboardInterrupt in or after the decision rolls back",
        (
            Edit(
                _C + "_choose_next",
                "self.phase = ROLLBACK if unsent else",
                "self.phase = ROLLBACK if unsent or self.phase in (DECIDE, COMMIT) else",
            ),
            Edit("txpool.tm.commit.split_phase:await_each", "except BaseException", "except Exception"),
        ),
        scenario=replace(TWO, name="two, interrupted", interrupts=True, leases=0),
    ),
    Mutation(
        "timeout",
        "a timeout stops what decides",
        test="tests/crash/test_hanging.py::test_the_timeout_never_cancels_what_decides",
        real=(
            Edit(
                "txpool.tm.completion.completion:Completion._begin_decision",
                "self._deciding = cause is None",
                "self._deciding = False",
            ),
        ),
    ),
    Mutation(
        "phase two",
        "commit() waits for ever for a database that hangs",
        test="tests/crash/test_hanging.py::test_a_session_that_stands_still_in_phase_two_is_left_to_recovery[log-phase-two-wait]",
        real=(Edit("txpool.resources.deadlines:Deadlines.after_decision", "if self._wait is None:", "if True:"),),
    ),
    Mutation(
        "false yes",
        "PREPARE that is answered by ROLLBACK is believed",
        flaw="false yes",
        scenario=replace(TWO, name="two, votes and cuts", refusals=True, cuts=1, leases=0),
        test="tests/integration/resources/postgresql/test_two_phases.py::test_failed_transaction_votes_no_where_psycopg_says_yes",
        real=(
            Edit(
                "txpool.resources.postgresql.branches.branch:PostgreSQLBranch.start_prepare",
                "raw.pgconn.transaction_status != INTRANS",
                "False",
            ),
            Edit(
                "txpool.resources.postgresql.branches.branch:PostgreSQLBranch.await_prepare",
                '== b"PREPARE TRANSACTION"',
                'in (b"PREPARE TRANSACTION", b"ROLLBACK")',
            ),
        ),
    ),
    Mutation(
        "36",
        "a reader ends in phase one",
        (
            Edit(
                _C + "_set_readers_apart",
                "readers.find(checks)",
                "readers.find(checks); readers.commit()",
            ),
        ),
        scenario=READER,
        found="EARLY",
    ),
    Mutation(
        "36b",
        "a reader commits though the outcome is not known",
        (Edit(_C + "_run", "self._readers.roll_back()", "self._readers.commit()"),),
        scenario=_ONE_READER,
        found="EARLY",
    ),
    Mutation(
        "36c",
        "whoever is asked is taken for a reader",
        (
            Edit(
                "txpool.tm.commit.readers:Readers.find",
                "if not check.await_answer():",
                "if check.await_answer() is None:",
            ),
        ),
        scenario=replace(TWO, name="two, asked", asked=True),
    ),
    Mutation(
        "36d",
        "no answer is taken for that of a reader",
        (Edit("txpool.tm.commit.readers:Readers.find", "if failures:", "if False:"),),
        scenario=replace(TWO, name="two, asked", asked=True, cuts=1, leases=0),
        found="FALSE",
    ),
)
