"""Which prepared branches the sessions of MariaDB and MySQL may wait for.

The server shows which transaction waits for which, but not the name of a branch: all that are prepared are candidates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.driver.driver import Driver
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.protocol import Session, code_of
from txpool.resources.recovery_access import PreparedBranch

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

_TRANSACTIONS: Final = "select trx_id, trx_mysql_thread_id from information_schema.innodb_trx"
#: By whether it is MariaDB: which transaction waits for which.
_WAITS: Final = {
    True: "select requesting_trx_id, blocking_trx_id from information_schema.innodb_lock_waits",
    False: "select requesting_engine_transaction_id, blocking_engine_transaction_id "
    "from performance_schema.data_lock_waits",
}
#: The privilege PROCESS is missing; SELECT on performance_schema is; XA_RECOVER_ADMIN is.
NOT_ALLOWED: Final = frozenset({1227, 1142, xa.NOT_ALLOWED})


class MySQLLockHolders:
    """As `LockHolders`. An account without the privilege PROCESS finds nothing."""

    certain = False

    def __init__(self, settings: DataSourceSettings, driver: Driver) -> None:
        self._driver = driver

    def holders(self, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        with closing(self._driver.connect()) as raw:
            try:
                held = behind_prepared(raw.session)
                candidates = [PreparedBranch(xid) for xid in xa.listed(raw.session)] if held else []
            except Exception as error:
                if code_of(error) in NOT_ALLOWED:
                    return [[] for _ in waiting]
                raise
            # A pooler's number is a stranger's on the server, and so is that of another server behind a balancer.
            return [
                candidates if each.direct and each.node == raw.node and each.session_number in held else []
                for each in waiting
            ]

    def sessions(self, waiting: Sequence[Any]) -> list[list[int]]:
        with closing(self._driver.connect()) as raw:
            try:
                waits, threads = raw.session.run(_WAITS[raw.is_mariadb]), _threads(raw.session)
            except Exception as error:
                if code_of(error) in NOT_ALLOWED:
                    return [[] for _ in waiting]
                raise
            behind = defaultdict[int, list[int]](list)
            for requesting, blocking in waits:
                behind[threads.get(str(requesting), 0)].append(threads.get(str(blocking), 0))
            return [
                behind.get(each.session_number, []) if each.direct and each.node == raw.node else [] for each in waiting
            ]


def _threads(session: Session) -> dict[str, int]:
    """By transaction, the session that has it; 0 if none has."""
    return {str(transaction): int(thread or 0) for transaction, thread in session.run(_TRANSACTIONS)}


def behind_prepared(session: Session) -> set[int]:
    """The sessions that wait, through others or not, for a transaction that has no session: for a prepared one."""
    waits = session.run(_WAITS[session.raw.is_mariadb])
    threads = _threads(session)
    behind = defaultdict[str, set[str]](set)
    for waiting, blocking in waits:
        behind[str(blocking)].add(str(waiting))
    prepared = {transaction for transaction, thread in threads.items() if not thread}
    return {threads.get(each, 0) for each in _reached(behind, prepared)} - {0}


def _reached(behind: Mapping[str, set[str]], first: set[str]) -> set[str]:
    """The transactions that wait for these, through others or not."""
    found, new = set[str](), set(first)
    while new:
        new = {waiting for each in new for waiting in behind.get(each, ())} - found
        found |= new
    return found
