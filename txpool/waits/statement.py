"""A statement that waits for prepared branches, in words."""

from __future__ import annotations

from dataclasses import dataclass

from txpool.datasource import DataSource
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import Xid, split_gtrid

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class WaitingStatement:
    """A statement that waits, and the branches that it waits for; or of which it waits for one, if not `certain`."""

    source: DataSource
    #: The transaction that has the connection; empty outside any.
    gtrid: str
    thread: str
    #: For how long, in seconds.
    seconds: float
    branches: tuple[PreparedBranch, ...]
    certain: bool
    #: What holds the lock, if no branch does: in words, work of this process.
    work: tuple[str, ...] = ()

    @property
    def xids(self) -> list[Xid]:
        """The names of the branches, one for each transaction."""
        return list({branch.xid.gtrid: branch.xid for branch in self.branches}.values())

    def __str__(self) -> str:
        who = f"a statement of {self.gtrid}" if self.gtrid else "a statement outside any transaction"
        start = f"{self.source.name}: {who}, in {self.thread}, has executed for {self.seconds:.1f} s and waits for"
        if self.work:
            return (
                f"{start} a lock of {'; '.join(self.work)}. It goes on waiting until that has ended, or its own "
                "timeout is over. If that waits for this statement in turn, only a timeout ends the two: set "
                "transaction.timeout, or give timeout= to the block"
            )
        named = [_describe(branch) for branch in self.branches[:_MOST_NAMED]]
        if len(self.branches) > _MOST_NAMED:
            named.append(f"{len(self.branches) - _MOST_NAMED} more")
        if self.certain:
            held = f"a lock that a prepared branch holds: {'; '.join(named)}"
        else:
            held = f"a lock of a prepared branch. The server does not tell of which. Candidates: {'; '.join(named)}"
        gtrids = [xid.gtrid for xid in self.xids]
        return (
            f"{start} {held}. "
            "A branch is ended by its process or, if that is dead, by recovery, and the statement goes on waiting "
            f"until then. See `txpool-recovery show {gtrids[0] if len(gtrids) == 1 else 'GTRID'}`; "
            "`txpool-recovery scan` lets recovery look at once"
        )


def _describe(branch: PreparedBranch) -> str:
    node, incarnation, _ = split_gtrid(branch.xid.gtrid)
    since = "" if branch.age is None else f", prepared {branch.age:.0f} s ago"
    owner = "" if branch.owner is None else f" by role {branch.owner}"
    return f"{branch.xid.gtrid} (process {incarnation} of node {node}{since}{owner})"
