"""The rule of what a living process leaves prepared, and of last resources, left out."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.explorer.scenarios import BY_HAND_BESIDE, LAST, OVERDUE, OVERDUE_LAST
from tests.crash.mutating import Edit, Mutation

_COORDINATOR = "txpool.tm.commit.coordinator:Coordinator"
_OVERDUE = "recovery.scan.modules.overdue:OverdueModule"
_TAKES_THE_KEY = "resolution = this_pass.log.abort(gtrid)"
_TIMEOUTS = "tests/unit/tm/test_timeout_notes.py"

MUTATIONS = (
    Mutation(
        "38",
        "age decides the outcome: what is overdue rolls back without an abort record",
        (
            Edit(
                f"{_OVERDUE}._abort",
                _TAKES_THE_KEY,
                "resolution = Resolution.ABORTED\n"
                "    for branch in this_pass.snapshot.listed_branches(gtrid):\n"
                "        this_pass.start_rollback(branch, 'it is overdue')()",
            ),
        ),
        scenario=OVERDUE,
    ),
    Mutation(
        "38b",
        "what is overdue is ended beside a last resource, too",
        (
            Edit(f"{_OVERDUE}._start", "    if last:\n", "    if False:\n"),
            Edit(f"{_OVERDUE}._abort", _TAKES_THE_KEY, "resolution = this_pass.log.abort_noted(gtrid)"),
        ),
        scenario=OVERDUE_LAST,
    ),
    Mutation(
        "38c",
        "abort records are read after the pointers",
        (
            Edit(
                "recovery.scan.reading:take_snapshot",
                "    aborted, last_resources = log.aborted(), log.last_resources()\n"
                "    pointers, decisions = log.pointers(), log.decisions()\n",
                "    last_resources, pointers = log.last_resources(), log.pointers()\n"
                "    aborted, decisions = log.aborted(), log.decisions()\n",
            ),
        ),
        scenario=BY_HAND_BESIDE,
    ),
    Mutation(
        "38d",
        "a last resource commits without a note",
        (
            Edit(f"{_COORDINATOR}._prepare", "log.note_last(request.gtrid, self._last.datasource)", "pass"),
            Edit(f"{_COORDINATOR}._commit_last", "if self._noted and (", "if False and ("),
        ),
        scenario=LAST,
        found="UNREPORTED",
    ),
    Mutation(
        "38e",
        "a last resource commits though recovery has fenced its process, and has told that it may have committed",
        test="tests/unit/tm/test_last_resource.py::"
        "test_38_a_last_resource_does_not_commit_once_recovery_has_fenced_its_process",
        real=(Edit(f"{_COORDINATOR}._commit_last", "if self._noted and (self._fenced() or ", "if self._noted and ("),),
    ),
    Mutation(
        "38f",
        "a note that stands alone tells nothing, since no branch is left that rolls back",
        test="tests/unit/recovery/scan/test_last_resource.py::"
        "test_38_the_note_alone_is_enough_since_others_may_have_ended_the_branches",
        real=(
            Edit(
                "recovery.scan.modules.last_resources:tell_of_noted",
                "            if last:  # else",
                "            if False:  # else",
            ),
        ),
    ),
    Mutation(
        "38g",
        "recovery rolls back beside a note, and tells nothing",
        (Edit("recovery.scan.recovery_pass:RecoveryPass.tell_of_last_resource", "self._keep(", "str("),),
        scenario=LAST,
        found="UNREPORTED",
    ),
    Mutation(
        "38h",
        "an abort record meets no note",
        (
            Edit(f"{_OVERDUE}._start", "    if last:\n", "    if False:\n"),
            Edit(
                "txpool.log.memory:MemoryLog.abort",
                "met = self._disk.outcomes.setdefault(gtrid, None)",
                "met = self._disk.outcomes[gtrid] = None if isinstance(self._disk.outcomes.get(gtrid), str) else "
                "self._disk.outcomes.get(gtrid)",
            ),
        ),
        scenario=OVERDUE_LAST,
        test="tests/unit/log/test_last_resources.py::test_38_note_and_abort_record_exclude_each_other",
    ),
    Mutation(
        "38j",
        "what recovery has rolled back by an abort record is a hazard to the coordinator",
        (
            Edit(
                f"{_COORDINATOR}._left_to_recovery",
                "return self._decided is _ROLLED_BACK and (self._aborted or self.gtrid in "
                "self._required_log().aborted())",
                "return False",
            ),
        ),
        scenario=replace(OVERDUE, name="two, overdue, no evidence", evidence=False),
        found="FALSE",
    ),
    Mutation(
        "38i",
        "the timeout is not noted before the first PREPARE",
        test=f"{_TIMEOUTS}::test_38_the_timeout_is_noted_before_the_first_prepare",
        real=(Edit(f"{_COORDINATOR}._name_branches", "log.note_timeout(request.gtrid, request.timeout)", "pass"),),
    ),
)
