"""Recovery finishes the transactions that crashes have left.

One scan, from the outside in:

1. `recovery.manager` opens the log, and runs one or two passes.
2. `recovery.scan.reading` takes the pass's snapshot: what is prepared, who is alive, what is decided.
   `recovery.scan.datasources.datasources` asks the databases.
3. `recovery.scan.snapshot` answers questions about it: whose is this transaction, which datasource or log decides it?
4. The modules of `recovery.scan.modules` run in order: `transactions` (marked, decided, orphans), `staging`, `expiry`.
   For an orphan, the filters of `orphans` vote.
5. `recovery.scan.recovery_pass` commits and rolls back branches; nothing else does. `recovery.scan.report` records it.
6. `recovery.operator.last_scan` keeps the result and raises alarms.

`recovery.operator` also has what an operator reads and does by hand, `recovery.service` the daemon and its status page,
and `recovery.cli` the command `txpool-recovery`.
"""

from recovery.manager import RecoveryManager
from recovery.scan.report import ScanReport

__all__ = ["RecoveryManager", "ScanReport"]
