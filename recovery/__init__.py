"""Recovery: finish what crashes left."""

from recovery.manager import RecoveryManager
from recovery.scan.report import ScanReport

__all__ = ["RecoveryManager", "ScanReport"]
