"""Rule 39: a file is removed only by a key that the sweep has won."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_TESTS = "tests/integration/lake/test_sweep.py::"
_ATTEMPTS = "tests/integration/lake/test_attempts.py::"

MUTATIONS = (
    Mutation(
        "39",
        "files are removed since no decision is found",
        test=_TESTS + "test_the_row_tells_whether_files_are_published[sqlite-True]",
        real=(
            Edit(
                "txpool.lake.warehouse:Warehouse.sweep",
                "won = self._win(gtrid, lock_timeout)",
                "won = True",
            ),
        ),
    ),
    Mutation(
        "39 late",
        "a transaction goes on that was swept before it has written its row",
        test=_TESTS + "test_who_is_swept_before_its_row_is_written_gives_up[postgresql]",
        real=(Edit("txpool.lake.work:LakeWork._require_journal", "if not self", "if False and not self"),),
    ),
    Mutation(
        "39 attempts",
        "the files of attempts go since no decision is found, and some were published",
        test=_ATTEMPTS + "test_recovery_removes_what_nobody_has_published[True-sqlite]",
        real=(Edit("txpool.lake.journals.folder:Journals.clear_but", "set(made).difference(kept)", "made"),),
    ),
    Mutation(
        "39 order",
        "the transaction's journal goes before those of the attempts that it has published",
        test=_ATTEMPTS + "test_a_sweep_that_dies_at_any_step_is_gone_on_with[True-sqlite]",
        real=(
            Edit(
                "txpool.lake.journals.folder:Journals.clear_but",
                "attempts = self.attempts(gtrid)",
                "attempts = self.attempts(gtrid)\n    self.remove(gtrid)",
            ),
        ),
    ),
)
