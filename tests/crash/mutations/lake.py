"""Rule 39: a file is removed only by a key that the sweep has won."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_TESTS = "tests/integration/lake/test_sweep.py::"
_ATTEMPTS = "tests/integration/lake/test_attempts.py::"
_OBJECTS = "tests/integration/lake/test_objects.py::"
#: A file goes, though a table names it.
_NAMED_TOO = Edit("txpool.lake.warehouse:Warehouse.sweep", "set() if own else self._named()", "set()")

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
            _NAMED_TOO,
        ),
    ),
    Mutation(
        "39 restored",
        "the files of a journal go whose key is free, since the transaction has committed long ago",
        test=_TESTS + "test_39_a_journal_that_a_restore_has_brought_back_removes_nothing_that_is_named[sqlite-False]",
        real=(_NAMED_TOO,),
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
    Mutation(
        "39 upload",
        "a sweep leaves an upload that a task still completes",
        test=_OBJECTS + "test_whoever_is_swept_completes_nothing[sqlite]",
        real=(Edit("txpool.lake.journals.bucket:BucketJournals._remove", "self.bucket.abort(key, upload)", "pass"),),
    ),
    Mutation(
        "39 mark",
        "an object is removed that another entry of the journal has made",
        test=_OBJECTS + "test_an_entry_that_arrives_late_removes_nothing[sqlite]",
        real=(
            _NAMED_TOO,  # which keeps it as well
            Edit("txpool.lake.journals.bucket:BucketJournals._remove", ".get(MARK) == mark", ".get(MARK)"),
        ),
    ),
    Mutation(
        "39 objects",
        "the transaction's entries go before those of the attempts that it has published",
        test=_OBJECTS + "test_a_sweep_that_dies_at_any_step_is_gone_on_with[True-sqlite]",
        real=(
            Edit(
                "txpool.lake.journals.bucket:BucketJournals._remove_journal",
                "self.bucket.delete_all([each.key for each in entries.attempts])",
                "self.bucket.delete_all([each for each in own if each not in (begun, swept)])\n"
                "    self.bucket.delete_all([each.key for each in entries.attempts])",
            ),
        ),
    ),
)
