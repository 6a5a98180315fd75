"""What an operator asks of recovery, and does by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from recovery.operator import commands, listing, suspension
from recovery.operator.alarms import unconfigured
from recovery.operator.audit import AuditEntry, audit_entries, audited
from recovery.operator.last_scan import LastScan
from recovery.scan import saved
from recovery.scan.datasources.asking import Asking
from recovery.scan.datasources.configured import ConfiguredDatasources
from recovery.scan.datasources.datasources import RecoveryDatasources
from recovery.scan.datasources.discovered import DiscoveredDatasources
from recovery.scan.datasources.workers import Workers
from recovery.scan.modules.expiry import Expired, expired
from recovery.scan.outboxes import OutboxStatus, outboxes
from recovery.scan.reading import take_snapshot
from recovery.scan.report import RepeatFilter, ScanRecorder, ScanReport
from recovery.scan.snapshot import Snapshot
from txpool.config.settings import RecoverySettings
from txpool.locks import Lock
from txpool.log import open_log
from txpool.log.base import DecisionLog, IncarnationState


class OperatorCommands:
    """The part of a `RecoveryManager` that operators use. The manager sets the attributes."""

    last_scan: LastScan
    #: The datasources that did not answer the last `in_doubt` or `show`, with their errors.
    unanswered: Mapping[str, str]
    #: Databases in which its nodes prepare and that its configuration does not name, as the last `in_doubt` or
    #: `show` found them, each with an explanation.
    unconfigured: Mapping[str, str]
    _settings: RecoverySettings
    _log: DecisionLog | None
    _configured: ConfiguredDatasources
    _discovered: DiscoveredDatasources
    _workers: Workers
    _asking: Callable[[], Asking]
    _repeats: RepeatFilter
    _scan_lock: Lock

    def in_doubt(self) -> list[listing.InDoubt]:
        """The transactions in doubt, and what the next scan will do with each. Nothing is written. Errors: LogError."""
        return list(self.each_in_doubt())

    def each_in_doubt(self) -> Iterator[listing.InDoubt]:
        """As `in_doubt`, one after the other: very many need less memory so. All is read before the first.

        Errors: LogError.
        """
        with self._opened() as log:
            datasources = self._recovery_datasources(log)
            snapshot = self._read_only_snapshot(log, datasources)
            return listing.each_in_doubt(snapshot, datasources, saved.read(log))

    def outboxes(self) -> tuple[OutboxStatus, ...]:
        """The outboxes that `recovery.outboxes` means, as they are now. Nothing is written. Errors: LogError."""
        with self._opened() as log:
            return outboxes(self._recovery_datasources(log), self._settings.recovery_outboxes)

    def show(self, gtrid: str) -> listing.InDoubt | None:
        """All that is known of one transaction; None if nothing is. Errors: LogError, ProgrammingError."""
        with self._opened() as log:
            datasources = self._recovery_datasources(log)
            heuristics = [each for found in expired(log) if found.name == gtrid for each in found.heuristics]
            snapshot = self._read_only_snapshot(log, datasources)
            gtrid = commands.require_gtrid(gtrid)
            history = audit_entries(log, gtrid)
            return listing.show(
                snapshot, datasources, gtrid, expired=heuristics, history=history, saved=saved.read(log)
            )

    def _snapshot(self, log: DecisionLog, datasources: RecoveryDatasources, *, fence: bool = True) -> Snapshot:
        return take_snapshot(
            log,
            datasources,
            fence=fence,
            seen_for=self.last_scan.alarms.seen_for(saved.seen_for(log)),
            overdue_rollback=self._settings.recovery_overdue_rollback,
        )

    def _read_only_snapshot(self, log: DecisionLog, datasources: RecoveryDatasources) -> Snapshot:
        snapshot = self._snapshot(log, datasources, fence=False)
        self.unanswered = {**snapshot.unread_staging, **snapshot.unanswered}
        self.unconfigured = {alarm.subject: alarm.text for alarm in unconfigured(snapshot)}
        return snapshot

    def expired(self) -> list[Expired]:
        """What has expired: recovery does nothing with it any more, and keeps it for people. Errors: LogError."""
        with self._opened() as log:
            return expired(log)

    def commit(self, gtrid: str, reason: str = "") -> ScanReport:
        """Commit now a transaction that is decided to commit.

        Errors: LogError; ProgrammingError if it is not decided; OperationalError if the deciding database fails.
        """
        return self._by_hand("commit", gtrid, reason, commands.commit)

    def rollback(self, gtrid: str, reason: str = "") -> ScanReport:
        """Make a commit of the transaction impossible, then roll it back.

        Errors: LogError; ProgrammingError if it is decided; OperationalError if the deciding database fails.
        """
        return self._by_hand("rollback", gtrid, reason, commands.rollback)

    def forget(self, gtrid: str, reason: str = "") -> int:
        """Dismiss the heuristic outcomes of a transaction that has ended. Returns how many there were.

        Errors: LogError; ProgrammingError if it has none, has not ended, or belongs to another node; OperationalError
        if a datasource does not answer.
        """
        with self._scan_lock, self._opened() as log, audited(log, "forget", commands.require_gtrid(gtrid), reason):
            return commands.forget(log, self._recovery_datasources(log), gtrid)

    def forget_datasource(self, name: str, reason: str = "") -> int:
        """Retire the log's notes that our nodes prepare in a datasource. Returns how many there were.

        Errors: LogError; ProgrammingError if there is no such note, if a process of a noted node is alive, or if a
        branch is prepared there; OperationalError if the database does not answer.
        """
        with self._scan_lock, self._opened() as log, audited(log, "forget --datasource", "", f"{name}: {reason}"):
            return commands.forget_datasource(log, self._recovery_datasources(log), name, self._has_living_process)

    def _has_living_process(self, node: str) -> bool:
        """Whether any process of a node is alive."""
        with self._opened(node) as log:
            return IncarnationState.ALIVE in log.incarnations().values()

    def _by_hand(self, command: str, gtrid: str, reason: str, act: commands.Command) -> ScanReport:
        with (
            self._scan_lock,
            self._opened() as log,
            audited(log, command, commands.require_gtrid(gtrid), reason) as reports,
        ):
            recorder = ScanRecorder(self._repeats)
            act(log, self._recovery_datasources(log), recorder, gtrid)
            reports.append(recorder.report())
            return reports[0]

    def audit_entries(self) -> list[AuditEntry]:
        """The commands that people have run by hand, oldest first. Errors: LogError."""
        with self._opened() as log:
            return audit_entries(log)

    def suspend(self, reason: str = "") -> suspension.Suspension:
        """Let no pass begin until `resume`, in any recovery manager of this node. Errors: LogError."""
        with self._opened() as log:
            return suspension.suspend(log, reason)

    def resume(self, reason: str = "") -> bool:
        """Let the next scan run again. Returns whether recovery was suspended. Errors: LogError."""
        with self._opened() as log:
            return suspension.resume(log, reason)

    def suspended(self) -> suspension.Suspension | None:
        """The suspension of this node's recovery; None if there is none. Errors: LogError."""
        with self._opened() as log:
            return suspension.suspension(log)

    def _recovery_datasources(self, log: DecisionLog) -> RecoveryDatasources:
        timeout = self._settings.recovery_lock_timeout
        return RecoveryDatasources(
            self._configured.all,
            nodes=log.nodes(),
            lock_timeout=timeout,
            others=self._discovered,
            asking=self._asking(),
        )

    @contextmanager
    def _opened(self, node: str = "") -> Iterator[DecisionLog]:
        """The log, as this node or the named one alone sees it."""
        try:
            if self._log is not None:
                yield self._log
                return
            with closing(open_recovered_log(self._settings, node)) as log:
                yield log
        finally:
            self._workers.rest()


def open_recovered_log(settings: RecoverySettings, node: str = "") -> DecisionLog:
    """Open the log as it knows the nodes that these settings recover, or one node alone. Errors: LogError."""
    return open_log(
        settings.log_url or "",
        node=settings.node_name or "",
        nodes=[node] if node else settings.recovery_nodes or None,
        user=settings.log_user,
        password=settings.log_password,
    )
