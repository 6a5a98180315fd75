"""Recovery: finish what crashes left."""

from recovery.manager import RecoveryManager
from recovery.report import ScanReport

__all__ = ["RecoveryManager", "ScanReport"]
