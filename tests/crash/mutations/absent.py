"""Rule 34, left out piece by piece: what a branch that is gone counts as, and what proves which server says so."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.explorer.scenarios import ASKS_AGAIN, FAILOVER, NO_EVIDENCE, UNTOLD
from tests.crash.mutating import Edit, Mutation

_COORDINATOR = "txpool.tm.commit.coordinator:Coordinator."
_PASS = "recovery.scan.recovery_pass:RecoveryPass."
_COMMAND = "txpool.resources.branches.phase_two:PhaseTwoCommand."
_POSTGRESQL = "txpool.resources.postgresql.branches.phase_two:PostgreSQLPhaseTwo."
_ROWS = "tests/integration/recovery/test_branch_rows.py::"
_TESTS = "tests/integration/resources/postgresql/test_absent.py::"

MUTATIONS = (
    Mutation(
        "34",
        "a coordinator takes a branch for committed that its first COMMIT does not find",
        (Edit("txpool.tm.commit.gone:judged_absent", "if not ended_by_another or not record.identity:", "if False:"),),
        scenario=UNTOLD,
        found="UNREPORTED",
    ),
    Mutation(
        "34b",
        "it does so neither where recovery has fenced it, and committed",
        (Edit(_COORDINATOR + "_judged", "ended_by_another=self._left_to_recovery()", "ended_by_another=False"),),
        scenario=NO_EVIDENCE,
        found="FALSE: heuristic",
    ),
    Mutation(
        "34c",
        "the fence is read before the answer",
        (
            Edit(
                _COORDINATOR + "_commit",
                "    self._phase_two_begun = True\n",
                "    self._phase_two_begun = True\n    self._early = self._fenced()\n",
            ),
            Edit(_COORDINATOR + "_judged", "self._left_to_recovery()", "self._early"),
        ),
        scenario=replace(NO_EVIDENCE, fates=0),
        found="FALSE: heuristic",
    ),
    Mutation(
        "34d",
        "recovery takes whatever is gone for lost",
        (Edit(_PASS + "_judged", "ended_by_another=True", "ended_by_another=False"),),
        scenario=NO_EVIDENCE,
        found="FALSE",
    ),
    Mutation(
        "34e",
        "recovery takes what a failover has lost for committed",
        (
            Edit(
                _PASS + "_finish_commit",
                "if outcome is not BranchOutcome.COMMITTED:",
                "if outcome is BranchOutcome.ROLLED_BACK:",
            ),
        ),
        scenario=FAILOVER,
        found="UNREPORTED",
    ),
    Mutation(
        "34f",
        "whatever server answers is the one that prepared",
        flaw="any server",
        scenario=replace(FAILOVER, evidence=False),
        found="UNREPORTED",
        test=_TESTS + "test_34_a_standby_that_lacked_the_branch",
        real=(Edit(_POSTGRESQL + "_is_same_generation", "timeline == self._now.timeline", "True"),),
    ),
    Mutation(
        "34g",
        "an unknown identity proves as much as a known one",
        test=_TESTS + "test_34_without_an_identity_nothing_is_proven",
        real=(Edit(_COMMAND + "_outcome_by_evidence", "if not record.identity or not proven or", "if not proven or"),),
    ),
    Mutation(
        "34h",
        "a branch forgets that its COMMIT was sent before",
        flaw="forgets what it sent",
        scenario=ASKS_AGAIN,
        found="FALSE: heuristic",
        test=_TESTS + "test_34_after_an_answer_that_was_lost_absent_is_that_answer",
        real=(Edit(_POSTGRESQL + "sent", "raw is None, True", "raw is None, again or raw is None"),),
    ),
    Mutation(
        "34j",
        "what is adopted from a listing has no evidence",
        test="tests/crash/test_absent.py::test_34_a_lost_answer_to_the_commit_of_a_task_is_success",
        real=(Edit("txpool.spark.commit.listing:list_attempts", ", identity, each.evidence)", ", identity)"),),
    ),
    Mutation(
        "34k",
        "a branch forgets that its COMMIT was begun before an interrupt",
        test=_TESTS + "test_34_after_an_interrupt_the_command_may_have_been_sent_before",
        real=(
            Edit(
                "txpool.resources.postgresql.branches.branch:PostgreSQLBranch._finish",
                "again=self._again",
                "again=False",
            ),
        ),
    ),
    Mutation(
        "34l",
        "an answer that was read counts as lost, since what followed was",
        test=_TESTS + "test_34_an_answer_that_was_read_is_not_lost_with_the_proof_of_who_gave_it",
        real=(Edit(_COMMAND + "_reply", "self._answer_lost = self._lost_before", "pass"),),
    ),
    Mutation(
        "34i",
        "a server is the one that the session began with",
        test=_TESTS + "test_34_a_pooler_that_leads_to_another_server",
        real=(
            Edit(
                _POSTGRESQL + "_identity",
                "self._now = identify(raw.session, self._until)",
                "self._now = raw",
            ),
        ),
    ),
    Mutation(
        "34r",
        "a coordinator takes a branch for committed whose row is not there",
        test=_ROWS + "test_a_rollback_by_hand_before_the_commit_is_told",
        real=(Edit(_COORDINATOR + "_judged", "self._still_decided", "lambda: False"),),
    ),
    Mutation(
        "34s",
        "recovery does not look whether the decision is still there, once it has found no row",
        test=_ROWS + "test_no_row_is_no_rollback_where_another_recovery_has_deleted_it",
        real=(Edit(_PASS + "_judged", "partial(self._is_decided, record.xid.gtrid)", "lambda: True"),),
    ),
    Mutation(
        "34t",
        "a row is deleted while the log may still have its decision",
        test=_ROWS + "test_a_row_is_deleted_after_its_decision_and_not_before",
        real=(
            Edit("txpool.resources.marked.branch_rows:BranchRows.delete", "        purge(these)\n", "        pass\n"),
        ),
    ),
    Mutation(
        "34u",
        "recovery deletes the rows of living processes",
        test=_ROWS + "test_each_branch_has_a_row_until_its_decision_is_forgotten",
        real=(Edit("recovery.scan.modules.branch_rows:_is_needless", " and snapshot.is_left_to_recovery(gtrid)", ""),),
    ),
    Mutation(
        "34v",
        "a branch votes yes whose row was refused",
        test=_ROWS + "test_without_the_table_nothing_is_prepared",
        real=(
            Edit(
                "txpool.resources.mysql.branches.branch:MySQLBranch.await_prepare",
                "if row and row[0].error is not None:",
                "if False:",
            ),
        ),
    ),
)
