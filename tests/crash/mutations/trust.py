"""Rule 32, left out piece by piece: who holds a lock, who owns a table, what others have hung on it."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_FAULTS = "txpool.resources.postgresql.tables.trust:relation_faults"
_LEASES = "txpool.resources.postgresql.log.statements:STATEMENTS.incarnations"
_LOG = "tests/integration/log/test_trust.py"
_MARKED = "tests/integration/resources/marked/test_trust.py"

MUTATIONS = (
    Mutation(
        "32",
        "anybody's lock keeps an incarnation alive",
        test=f"{_LOG}::test_32_a_lock_that_a_stranger_holds_keeps_nobody_alive",
        real=(Edit(_LEASES, "pg_has_role(s.usesysid, r.oid, 'MEMBER')", "true"),),
    ),
    Mutation(
        "32b",
        "a table counts by its name",
        test=f"{_MARKED}::test_32_nor_is_one_in_a_schema_of_ours",
        real=(Edit(_FAULTS, "return [_fault(row) for row in found]", "return []"),),
    ),
    Mutation(
        "32c",
        "what hangs on a table of ours is not looked at",
        test=f"{_MARKED}::test_32_a_trigger_that_was_hung_by_leave_of_the_owner_is_none_of_ours",
        real=(Edit(_FAULTS, "if len(found) < len(rows):", "if False:"),),
    ),
    Mutation(
        "32d",
        "recovery drops whatever is called as a staging table is",
        test="tests/integration/spark/test_owned_tables.py::"
        "test_32_a_staging_table_of_a_strangers_is_not_used_and_keeps_recovery_from_nothing",
        real=(
            Edit(
                "txpool.resources.postgresql.tables.staging:_LIST",
                " and c.relowner operator(pg_catalog.=) any (table ours)",
                "",
            ),
        ),
    ),
)
