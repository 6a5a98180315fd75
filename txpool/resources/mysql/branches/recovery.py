"""Recovery's access to the prepared branches of one server."""

from __future__ import annotations

from contextlib import closing

from txpool.resources.branches.recovery import EndsBranches
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.branches.phase_two import MySQLPhaseTwo, evidence_of
from txpool.resources.recovery_access import PreparedBranch


class MySQLBranchRecovery(EndsBranches):
    """Recovery's access to prepared branches. Thread-safe: every method opens a connection and closes it, but for
    `phase_two`, whose branches share a few.

    The server lists the branches of all its databases, and does not tell who has prepared them.
    """

    command = MySQLPhaseTwo

    def identity(self) -> str:
        with closing(self._driver.connect()) as raw:
            return str(raw.identity)

    def logins(self) -> frozenset[str]:
        return frozenset()

    def recover(self) -> list[PreparedBranch]:
        with closing(self._driver.connect()) as raw:
            evidence = evidence_of(raw)
            return [PreparedBranch(xid, evidence=evidence) for xid in xa.listed(raw.session)]
