"""Rules that the SQL of a log in MariaDB and MySQL keeps, each left out: a test on the real server turns red."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_RECORD = "txpool.resources.mysql.log.server:RECORD"
_STATEMENTS = "txpool.resources.mysql.log.statements:STATEMENTS"
_LOG = "tests/integration/log"

MUTATIONS = (
    Mutation(
        "10-mysql",
        "a decision looks for the fence in a snapshot",
        test=f"{_LOG}/test_locks.py::test_10_a_decision_waits_for_the_fence_in_flight_and_is_refused[mariadb]",
        real=(Edit(_RECORD, " LOCK IN SHARE MODE", ""),),
    ),
    Mutation(
        "11-mysql",
        "a decision is not refused when fenced",
        test="tests/unit/log/test_store.py::"
        "test_11_a_decision_is_refused_when_its_incarnation_was_fenced_by_another[mysql]",
        real=(Edit(_RECORD, " AND fenced = 0", ""),),
    ),
    Mutation(
        "4-mysql",
        "a decision is made where a crash would lose it",
        test=f"{_LOG}/test_mysql.py::test_a_server_that_loses_commits_is_refused[mariadb-2]",
        real=(Edit(_RECORD, " AND @@innodb_flush_log_at_trx_commit = 1", ""),),
    ),
    Mutation(
        "23-mysql",
        "an abort record that meets the decision writes nothing",
        test=f"{_LOG}/test_unknown_decision.py::"
        "test_12_an_abort_record_that_meets_the_decision_writes_before_it_answers[mariadb]",
        real=(Edit(f"{_STATEMENTS}.abort", "touched = touched + 1", "made = made"),),
    ),
    Mutation(
        "32-mysql",
        "any session's lock keeps an incarnation alive",
        test=f"{_LOG}/test_mysql.py::test_32_a_lock_of_another_session_keeps_nobody_alive[mysql]",
        real=(
            Edit(f"{_STATEMENTS}.incarnations", "is_used_lock(lease) <=> session", "is_used_lock(lease) is not null"),
        ),
    ),
)
