"""What an orphan filter of a user's own needs: `recovery.orphan-filters` names it as package.module.Class."""

from recovery.scan.modules.orphans import Ballot, OrphanFilter, Vote
from recovery.scan.snapshot import Snapshot

__all__ = ["Ballot", "OrphanFilter", "Snapshot", "Vote"]
