"""What a recovery module of a user's own needs: `recovery.modules` names what makes it, as package.module:function."""

from recovery.scan.modules.own_module import RecoveryModule
from recovery.scan.snapshot import Snapshot

__all__ = ["RecoveryModule", "Snapshot"]
