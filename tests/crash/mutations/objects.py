"""Rules 31, 34, 39 and 40, left out where branches are objects in a bucket."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_RECOVERY = "tests/integration/resources/s3/test_recovery.py::"
_TRUST = "tests/integration/resources/s3/test_trust.py::"

MUTATIONS = (
    Mutation(
        "31 objects",
        "a manifest counts whoever owns it",
        test=_TRUST + "test_31_nor_if_a_decision_names_it[True]",
        real=(
            Edit(
                "txpool.resources.s3.bucket:Bucket.is_ours", "return found.owner == self._bucket_owner", "return True"
            ),
        ),
    ),
    Mutation(
        "34 objects",
        "an upload that is gone counts as completed",
        test=_RECOVERY + "test_an_upload_that_was_dropped_is_a_hazard_and_not_listed_for_ever",
        real=(Edit("txpool.resources.s3.branch:_complete", "return False", "return True"),),
    ),
    Mutation(
        "39 objects",
        "uploads are dropped that a manifest names",
        test=_RECOVERY + "test_sweeping_leaves_what_is_prepared",
        real=(Edit("txpool.resources.s3.work:sweep", "if is_prepared(bucket, staging):", "if False:"),),
    ),
    Mutation(
        "40 objects",
        "of a commit and a rollback at once both act",
        test=_RECOVERY + "test_whoever_comes_first_says_how_it_ends[withdraw]",
        real=(
            Edit(
                "txpool.resources.s3.manifest:end_manifest",
                "if found is None or found.ending:",
                "if found is None:",
            ),
        ),
    ),
)
