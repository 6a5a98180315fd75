"""The rules of the protocol, each left out once: whoever tests the rule must turn red.

Where a rule lives in the coordinator, in recovery or in the memory store, the explorer runs over the real code without
it. Where it lives in SQL or in a driver, the explorer's model has a flaw of the same kind, which shows what the rule is
there for, and a test of the real thing turns red over the real code without it (`python -m tests.crash.mutations RULE`
runs it).
"""

from __future__ import annotations

import sys

import pytest

from tests.crash import (
    mutations_claims,
    mutations_coordinator,
    mutations_recovery,
    mutations_spark,
    mutations_staging,
    mutations_trust,
)
from tests.crash.mutating import applied

MUTATIONS = (
    *mutations_coordinator.MUTATIONS,
    *mutations_recovery.MUTATIONS,
    *mutations_staging.MUTATIONS,
    *mutations_claims.MUTATIONS,
    *mutations_trust.MUTATIONS,
    *mutations_spark.MUTATIONS,
)


def main(rule: str) -> int:
    """Run a mutation's test over the real code without the rule; pytest's exit code (1 is red)."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.rule == rule)
    with applied((*mutation.edits, *mutation.real)):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", mutation.test]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
