"""Rules 31 and 39, left out where branches are references in the tables of a REST catalog."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_TESTS = "tests/integration/lake/test_rest.py::"
_BUCKET = "tests/integration/lake/test_rest_bucket.py::"

MUTATIONS = (
    Mutation(
        "31 references",
        "a reference counts by its name and by what its snapshot says of itself",
        test=_TESTS + "test_31_a_forged_reference_is_listed_and_never_ended",
        real=(
            Edit(
                "txpool.lake.rest.snapshots:Proof.holds",
                "return hmac.compare_digest(str(summary[_PROOF]), self._of(snapshot.snapshot_id, xid, uuid))",
                "return True",
            ),
        ),
    ),
    Mutation(
        "39 references",
        "files are removed since the reference is gone",
        test=_TESTS + "test_39_a_sweep_keeps_what_any_snapshot_names",
        real=(
            Edit(
                "txpool.lake.rest.references:References.sweep",
                "kept | self._named(found)",
                "set()",
            ),
        ),
    ),
    Mutation(
        "39 references prepared",
        "files are removed while a reference is there",
        test=_TESTS + "test_39_a_sweep_takes_nothing_of_what_is_prepared",
        real=(
            Edit(
                "txpool.lake.rest.references:References.sweep",
                "absent = {name: None, MAIN_BRANCH: main}",
                "absent = {MAIN_BRANCH: main}",
            ),
        ),
    ),
    Mutation(
        "39 references swept",
        "whoever was taken for dead, in a bucket, votes for what a sweep has removed",
        test=_BUCKET + "test_39_whoever_is_swept_prepares_nothing[lake.noted-names1]",
        real=(
            Edit(
                "txpool.lake.rest.work:ReferencesWork.prepare",
                "raise OperationalError(self._removed())",
                "pass",
            ),
        ),
    ),
    Mutation(
        "39 references order",
        "what is noted goes before what is listed, in a bucket",
        test=_BUCKET + "test_a_sweep_that_dies_at_any_step_keeps_what_is_published",
        real=(
            Edit(
                "txpool.lake.journals.bucket:BucketJournals._remove_journal",
                "begun, swept = ",
                "self.bucket.delete_all([each.key for each in entries.notes])\n    begun, swept = ",
            ),
            Edit("txpool.lake.rest.references:References.sweep", "kept | self._named(found)", "self._named(found)"),
        ),
    ),
)
