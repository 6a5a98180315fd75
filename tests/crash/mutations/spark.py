"""What Spark's attempts and jobs must not do: yields that differ from rows, and work past the driver's transaction."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

MUTATIONS = (
    Mutation(
        "26 yields",
        "a retry adopts what an earlier attempt has prepared, and its own yields are lost",
        test="tests/spark/commit/test_map_partitions.py::test_a_retry_adopts_only_where_no_yields_are_wanted",
        real=(Edit("txpool.spark.task.task:PartitionTask.__call__", "and not self.yielding", ""),),
    ),
    Mutation(
        "26 given up",
        "what Spark gave up is kept for a retry that never adopts, and waits for its locks",
        test=(
            "tests/unit/spark/test_attempts.py::test_where_nobody_adopts_all_that_spark_gave_up_is_struck_and_nothing_else"
        ),
        real=(Edit("txpool.spark.commit.attempts:Candidates.reject", "not self._adoptable or", ""),),
    ),
    Mutation(
        "26 runs on",
        "an attempt is struck that Spark has not given up",
        test=(
            "tests/unit/spark/test_attempts.py::test_where_nobody_adopts_all_that_spark_gave_up_is_struck_and_nothing_else"
        ),
        real=(Edit("txpool.spark.commit.attempts:Candidates.reject", "attempt.number in ended and", ""),),
    ),
    Mutation(
        "bypass late",
        "a job counts as begun after the transaction when its tasks ask after that",
        test="tests/spark/commit/test_bypass.py::test_threads_of_the_driver",
        real=(Edit("txpool.jobs.properties:begun_within", "job < ends[gtrid]", "False"),),
    ),
)
