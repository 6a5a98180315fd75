"""Rule 29, and what goes with it: staged rows are counted, and nobody drops what a driver may still move."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_TESTS = "tests/spark/table/test_write.py::"

MUTATIONS = (
    Mutation(
        "29",
        "staged rows are moved without being counted",
        test=_TESTS + "test_rows_that_a_server_crash_has_emptied_are_missed",
        real=(
            Edit(
                "txpool.spark.table.postgresql.merge:PostgreSQLMerge._require_rows",
                "if staged.get(attempt, 0) != reported:",
                "if False:",
            ),
        ),
    ),
    Mutation(
        "29 mysql",
        "rows staged in MariaDB are moved without being counted",
        test="tests/spark/table/test_mysql.py::test_rows_that_are_lost_are_missed[mariadb-append]",
        real=(Edit("txpool.spark.table.mysql.merge:MySQLMerge._move", "if found != sum(rows.values()):", "if False:"),),
    ),
    Mutation(
        "29 crash",
        "rows staged in MariaDB without a log are moved after the server has crashed",
        test="tests/spark/table/test_mysql.py::test_rows_that_a_server_crash_may_have_cost_are_not_moved[mariadb]",
        real=(
            Edit("txpool.resources.mysql.tables.staging:require_kept", "if cursor.fetchone() is None:", "if False:"),
        ),
    ),
    Mutation(
        "DDL",
        "a table that a dead transaction was to create counts as one that exists",
        test=(
            "tests/spark/table/test_mysql_lost.py::"
            "test_a_rerun_after_the_driver_was_killed_finds_no_table_that_was_only_begun[mariadb]"
        ),
        real=(Edit("txpool.spark.table.mysql.target:_read", "creator_of(cursor, name), name", "None, name"),),
    ),
    Mutation(
        "warnings",
        "what MariaDB cuts off with a warning is stored",
        test="tests/spark/types/test_mysql_values.py::test_a_value_that_would_be_changed_fails_its_task[mariadb-cut]",
        real=(Edit("txpool.spark.table.mysql.copying:_require_no_warning", "if cursor.fetchone()[0]:", "if False:"),),
    ),
    Mutation(
        "29 fence",
        "recovery drops staging tables before their process is fenced",
        test=_TESTS + "test_recovery_leaves_the_staging_table_of_a_living_driver",
        real=(
            Edit(
                "recovery.scan.modules.staging:StagingModule.run",
                "this_pass.snapshot.is_left_to_recovery(table.gtrid)",
                "True",
            ),
        ),
    ),
    Mutation(
        "29 tombstone",
        "recovery drops a marked database's staging tables without a tombstone",
        test=(
            "tests/spark/table/test_lost_processes.py::test_a_marked_databases_staging_table_is_swept_behind_its_tombstone"
        ),
        real=(
            Edit(
                "recovery.scan.modules.staging:StagingModule._drop",
                "if datasource in this_pass.datasources.tables and",
                "if False and",
            ),
        ),
    ),
    Mutation(
        "29 decider",
        "recovery lays a tombstone into every marked database that has the staging table, whoever decides",
        test="tests/unit/recovery/scan/test_staging.py::test_the_sweep_lays_no_tombstone_beside_a_decision[logged-silent]",
        real=(Edit("recovery.scan.modules.staging:_may_commit", "return undecided and", "return True or"),),
    ),
    Mutation(
        "9 decider",
        "a tombstone in one marked database is taken for the word of who decides in another",
        test=(
            "tests/unit/recovery/scan/test_staging.py::"
            "test_a_commit_that_lands_beside_anothers_tombstone_is_what_decides[is down]"
        ),
        real=(
            Edit(
                "recovery.scan.snapshot:Snapshot.marked_by",
                "next((name for name in with_row if self.rows[name][gtrid].committed), None)",
                "next(iter(with_row), None)",
            ),
        ),
    ),
)
