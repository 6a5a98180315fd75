"""The rules of the protocol, each left out once: whoever tests the rule must turn red.

Where a rule lives in the coordinator, in recovery or in the memory store, the explorer runs over the real code without
it. Where it lives in SQL or in a driver, the explorer's model has a flaw of the same kind, which shows what the rule is
there for, and a test of the real thing turns red over the real code without it (`python -m tests.crash.mutations RULE`
runs it).
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.crash.mutating import Mutation, applied
from tests.crash.mutations import (
    absent,
    claims,
    coordinator,
    delta,
    files,
    lake,
    log,
    mysql,
    objects,
    overdue,
    recovery,
    references,
    spark,
    staging,
    trust,
)

#: The environment variable that names the rule: tests/support/spark_site reads it in the processes of a Spark.
LEFT_OUT = "TXPOOL_TEST_LEAVES_OUT"

MUTATIONS = (
    *coordinator.MUTATIONS,
    *recovery.MUTATIONS,
    *overdue.MUTATIONS,
    *staging.MUTATIONS,
    *claims.MUTATIONS,
    *trust.MUTATIONS,
    *absent.MUTATIONS,
    *spark.MUTATIONS,
    *log.MUTATIONS,
    *mysql.MUTATIONS,
    *files.MUTATIONS,
    *lake.MUTATIONS,
    *delta.MUTATIONS,
    *objects.MUTATIONS,
    *references.MUTATIONS,
)
_for_good = ExitStack()


def leave_out(rule: str) -> Mutation:
    """From here on this process runs the real code without the rule."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.rule == rule)
    _for_good.enter_context(applied((*mutation.edits, *mutation.real)))
    return mutation


def main(rule: str) -> int:
    """Run a mutation's test over the real code without the rule; pytest's exit code (1 is red)."""
    os.environ[LEFT_OUT] = rule
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", leave_out(rule).test]))
