"""Rules 39 and 40, left out where rows are appended to Delta tables."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_RECOVERY = "tests/integration/resources/delta/test_recovery.py::"

MUTATIONS = (
    Mutation(
        "39 delta",
        "a rollback does not look whether the table's log has the rows",
        test=_RECOVERY + "test_a_publication_that_has_begun_is_not_rolled_back",
        real=(
            Edit(
                "txpool.resources.delta.branch:DeltaResource.withdraw", "if self.shows(append.table, xid):", "if False:"
            ),
        ),
    ),
    Mutation(
        "40 delta",
        "a commit does not look whether the table's log has the rows",
        test=_RECOVERY + "test_what_a_commit_leaves_recovery_finishes[forget-error0]",
        real=(
            Edit(
                "txpool.resources.delta.branch:DeltaResource._append",
                "if has_committed(table, manifest.xid, where):",
                "if False:",
            ),
            Edit(
                "txpool.resources.delta.branch:DeltaResource._append",
                "commit(version, append, manifest.xid, staging, log)",
                "commit(version, append, manifest.xid, staging, log); return ''",
            ),
        ),
    ),
)
