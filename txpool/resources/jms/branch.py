"""The branch of a transaction in a JMS broker, and recovery's access to such branches: as over JDBC."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txpool.errors import OperationalError, described
from txpool.resources.base import BranchOutcome
from txpool.resources.jdbc.branches.branch import JdbcBranch
from txpool.resources.jdbc.branches.phase_two import JdbcPhaseTwo
from txpool.resources.jdbc.branches.recovery import JdbcBranchRecovery
from txpool.resources.jdbc.dbapi.errors import ConnectionLost
from txpool.resources.own.resource import Work
from txpool.resources.recovery_access import PreparedBranch

if TYPE_CHECKING:
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.jms.connection import JmsConnection
    from txpool.resources.jms.driver import JmsDriver


class JmsPhaseTwo(JdbcPhaseTwo):
    """Commit or rollback of one branch."""

    place = "broker"


class JmsWork(Work):
    """The messages of one transaction, which the broker holds."""

    def __init__(self, raw: JmsConnection) -> None:
        self._raw = raw

    def begun(self) -> JmsConnection:
        """Its session, within its branch. OperationalError if a call has failed before."""
        self.require_active()
        raw = self._raw
        lost = raw.lost
        if raw.failed is not None or lost:
            raise (ConnectionLost if lost else OperationalError)(
                f"datasource {raw.name}: the session of this transaction was lost, or a call has failed, and it rolls "
                f"back: {described(raw.failed) if raw.failed else 'the broker has closed it'}"
            )
        if not raw.started and raw.xid is not None:
            raw.started = True  # first, so that an interrupt leaves no session that seems to be idle
            try:
                raw.database.start(raw, raw.xid)
            except BaseException as error:
                raw.failed = error
                raise
        return raw

    def prepare(self, xid: str) -> None:
        """Nothing: its branch does that."""

    def rollback(self) -> None:
        self._raw.drop()


class JmsBranch(JdbcBranch):
    """A branch on one session, which is given back once the branch has ended."""

    command = JmsPhaseTwo
    needs_decision = False

    def __init__(self, datasource: str, driver: JmsDriver, raw: Any, deadlines: Deadlines) -> None:
        super().__init__(datasource, driver, raw, deadlines)  # type: ignore[arg-type]
        self._sessions: JmsDriver | None = driver

    def _leave(self) -> None:
        super()._leave()
        self._give_back()

    def rollback(self) -> BranchOutcome:
        outcome = super().rollback()
        self._give_back()
        return outcome

    def _give_back(self) -> None:
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.give_back(self._raw)


class JmsRecovery(JdbcBranchRecovery):
    """Recovery's access to the branches of a broker."""

    command = JmsPhaseTwo

    def __init__(self, driver: JmsDriver, *, trusted: bool) -> None:
        super().__init__(driver, None)
        #: None: whoever can connect is one of ours. Else nobody is proven to be.
        self._roles: frozenset[str] | None = None if trusted else frozenset()

    def logins(self) -> frozenset[str]:
        return frozenset({""})

    def recover(self) -> list[PreparedBranch]:
        return [replace(each, roles=self._roles) for each in super().recover()]
