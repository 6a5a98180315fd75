"""Rule 40, left out: the lock under which a folder is published."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

MUTATIONS = (
    Mutation(
        "40",
        "a folder is exchanged without a lock",
        test="tests/integration/resources/files/test_recovery.py::test_40_two_who_both_looked_do_not_exchange_back",
        real=(Edit("txpool.resources.files.place:_take", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),),
    ),
)
