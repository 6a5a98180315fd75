"""Rule 39: a file is removed only by a key that the sweep has won."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_TESTS = "tests/integration/lake/test_sweep.py::"

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
)
