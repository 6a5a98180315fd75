"""What the kit tests: a datasource, under names of the kit's own, and the ways to end its branches from elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Errands, NotGiven, NotRun, require
from txpool.conformance.client import Client
from txpool.conformance.server import KillableServer
from txpool.conformance.workload import TableWork, Workload
from txpool.datasource import DataSource, open_settings
from txpool.errors import described
from txpool.resources.base import Branch, BranchOutcome, BranchRecord
from txpool.resources.marked.xids import Xids
from txpool.resources.parts import NO_SPARK
from txpool.resources.recovery_access import BranchRecovery, MarkedRow, XidsTable, optional
from txpool.tm.transaction import Transaction
from txpool.xid import PREFIX, Xid, make_gtrid, make_xid, new_incarnation

#: The node of all transactions of the kit. A recovery manager leaves a node alone that is not its own.
NODE = "txpool-conformance"
#: How a branch may answer that is gone, if nothing tells how it ended.
GONE = frozenset({BranchOutcome.ABSENT, BranchOutcome.LOST})
#: Seconds that a tombstone waits for a lock.
LOCK_TIMEOUT = 1.0
_SLOTS = 5  # branches that a case has prepared at once, at most
_POLL = 0.2
_NO_SERVER = "no server was given that may be killed"
_LONGEST_DROP = 20.0


class Unreachable(NotRun):
    """The database could not be connected to."""


class Subject:
    """One datasource under test. `patience` is how many seconds a branch may take until it can be ended."""

    def __init__(
        self, settings: DataSourceSettings, *, server: KillableServer | None = None, patience: float = 30.0
    ) -> None:
        self._run = secrets.token_hex(4)
        self._numbers = count(1)
        self.incarnation = new_incarnation()
        self.server = server
        self.errands = Errands()
        self.patience = patience
        schema, dot, _ = settings.cmr_table.rpartition(".")
        self.datasource = open_settings(
            replace(
                settings,
                cmr_table=f"{schema}{dot}txpool_conformance_xids_{self._run}",
                pool_min_size=0,
                pool_max_size=max(settings.pool_max_size, 6),
                transaction_required="off",
                transaction_read_only=False,
            )
        )
        self.datasource.names_early = False  # the kit names its branches itself, as early as that
        #: It, if it is a database.
        self.database = self.datasource if isinstance(self.datasource, DataSource) else None
        self.name, self.mode = self.datasource.name, self.datasource.mode
        self._clients: list[Client] = []
        #: What may be prepared, and must not be left behind.
        self._prepared: list[BranchRecord] = []
        self._table: TableWork | None = None
        self._workload: Workload | None = None
        if self.database is not None:
            self._workload = self._table = TableWork(self.database, f"txpool_conformance_{self._run}")
        self._has_marks = False

    def open(self) -> None:
        """Create what the cases need. `NotRun` if that would harm others; the database's error if it fails."""
        self._require_answer()
        if self.database is None or self._table is None:
            self._workload = self.datasource.resource_manager.workload(self.datasource)
            _ = self.workload  # raises if it has none
            return
        if self.mode == "xa":
            self._require_slots()
        try:
            self._table.create()
            if self.mode == "cmr":
                self._has_marks = True
                Xids(self.name, self.database.driver_adapter, self.database.settings.cmr_table).create()
        except Exception as error:
            raise NotRun(
                f"the kit needs a table of its own, and could not create it: {described(error)}. Give the user the "
                "right to create tables in its own schema, or name a database for tests; `txpool check`, without "
                "--conformance, says what else is wrong there. Nothing else was done"
            ) from error

    @property
    def workload(self) -> Workload:
        """What the cases write and read. `NotRun` if nobody has said that."""
        if self._workload is None:
            raise NotRun(
                f"{self.datasource.driver} has no workload(), so that the kit does not know what to write there and "
                "where to look for it"
            )
        return self._workload

    def _require_answer(self) -> None:
        settings = self.datasource.settings
        if self.database is None:
            try:
                self.recovery().identity()
            except Exception as error:
                raise Unreachable(f"{settings.url} does not answer: {described(error)}") from error
            return
        if self.datasource.resource_manager.url_is_path and not Path(settings.url.partition(":///")[2]).exists():
            raise Unreachable(f"{settings.url} does not exist, and the kit creates no database")
        try:
            self.database.driver_adapter.close(self.database.open_session())
        except Exception as error:
            raise Unreachable(f"{settings.url} could not be connected to: {described(error)}") from error

    def other_runs(self) -> str:
        """A note of what other runs of the kit have prepared here, which are under way or were killed; mostly empty."""
        if self.mode != "xa":
            return ""
        listed = (each.xid for each in self.recovery().recover() if not each.elsewhere)
        found = sorted(xid.joined for xid in listed if xid.gtrid.startswith(f"{PREFIX}:{NODE}:"))
        if not found:
            return ""
        return (
            "another run of the kit has prepared branches here. It is under way, or was killed, and was left alone. "
            f"Where none is under way, roll them back by hand, and drop its tables: {', '.join(found)}"
        )

    def _require_slots(self) -> None:
        slots = optional(self.recovery(), "slots")
        if slots is None:
            return
        found = slots()
        if found.maximum - found.taken < _SLOTS:
            raise NotRun(
                f"the server can hold {found.maximum} prepared transactions and holds {found.taken}; the kit needs "
                f"{_SLOTS} at once, and would take them from others. Raise max_prepared_transactions, or end those "
                "that are left (`txpool check` names them)"
            )

    # -- names ----------------------------------------------------------------------------------------------------

    def new_key(self) -> str:
        """A key that no other work has."""
        return f"txpool-conformance-{self._run}-{next(self._numbers)}"

    def new_gtrid(self, node: str = NODE) -> str:
        """A new transaction's name."""
        return make_gtrid(node, self.incarnation, next(self._numbers))

    def new_xid(self) -> Xid:
        """A new branch's name."""
        return make_xid(self.new_gtrid(), 0, self.name)

    def may_be_prepared(self, record: BranchRecord) -> None:
        """Note a branch before its PREPARE is sent."""
        self._prepared.append(record)

    # -- clients and what they do ---------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> Any:
        """Enlist the datasource in the transaction, which is ambient; returns what it works with."""
        if self.database is None:
            return transaction.enlist_datasource(self.datasource).pooled
        return self.database.connect()

    def client(self, xid: Xid | None = None) -> Client:
        """A new client's transaction."""
        client = Client(self, xid or self.new_xid())
        self._clients.append(client)
        return client

    def prepared(self, xid: Xid | None = None) -> tuple[Client, str, BranchRecord]:
        """A client that has written something and has prepared, the key of its work, and its record."""
        client = self.client(xid)
        key = client.write()
        return client, key, client.prepare()

    def require_visible(self, key: str | None, expected: bool, when: str) -> None:
        """`Violation` unless what was written under the key is there, or is not."""
        if key is not None:
            seen = "cannot be read" if expected else "can be read"
            require(self.workload.visible(key) is expected, f"what was written {seen} {when}")

    # -- from elsewhere -------------------------------------------------------------------------------------------

    def recovery(self) -> BranchRecovery:
        """Recovery's access to the prepared branches, as recovery.user if there is one."""
        return self.datasource.branch_recovery()

    def marks(self, nodes: Iterable[str] = (NODE,)) -> XidsTable:
        """Recovery's access to the kit's own table of marks."""
        return self.datasource.xids_table(nodes=tuple(nodes), lock_timeout=LOCK_TIMEOUT)

    def listed(self) -> set[Xid]:
        """The names of this run's branches that the resource manager lists as prepared here."""
        listed = self.recovery().recover()
        return {each.xid for each in listed if self.incarnation in each.xid.gtrid and not each.elsewhere}

    def finishers(self) -> dict[str, Callable[[BranchRecord, bool], BranchOutcome]]:
        """The ways in which txpool ends branches that others have prepared; they end one, and return its outcome."""
        recovery = self.recovery()
        ways: dict[str, Callable[[BranchRecord, bool], BranchOutcome]] = {
            "recovery": lambda record, commit: recovery.commit(record) if commit else recovery.rollback(record)
        }
        shared = optional(recovery, "phase_two")
        if shared is not None:
            ways["a pass of recovery"] = lambda record, commit: _ended(shared().branch(record), commit)
        if (self.datasource.resource_manager.spark or NO_SPARK).tasks:
            ways["the transaction that adopts it"] = lambda record, commit: _ended(
                self.datasource.prepared_branch(record), commit
            )
        return ways

    def finish(self, record: BranchRecord, *, commit: bool, way: str = "recovery") -> BranchOutcome:
        """End a branch from elsewhere, again and again while it is UNKNOWN, as long as the kit has patience."""
        until = monotonic() + self.patience
        while True:
            outcome = self.finishers()[way](record, commit)
            if outcome is not BranchOutcome.UNKNOWN or monotonic() > until:
                return outcome
            sleep(_POLL)

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        """Fence a marked transaction from elsewhere, again and again while that fails, as long as there is patience."""
        until = monotonic() + self.patience
        while True:
            try:
                return self.marks().tombstone(gtrid, identity)
            except Exception:
                if monotonic() > until:
                    raise
            sleep(_POLL)

    def require_server(self) -> None:
        """Raise if there is no server that may be killed."""
        if self.datasource.resource_manager.url_is_path:
            raise NotRun("it is a file or a folder, and has no server")
        if self.server is None:
            raise NotGiven(_NO_SERVER)

    def kill_server(self) -> None:
        """Kill the server and start it, and wait until it answers."""
        if self.server is None:
            raise NotGiven(_NO_SERVER)
        try:
            self.errands.run(self.server.kill)
        finally:
            self.errands.run(self.server.start)
        until = monotonic() + self.patience
        while True:
            try:
                self.workload.visible("first")
                return
            except Exception:
                if monotonic() > until:
                    raise
            sleep(_POLL)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """Remove all that the kit has made; returns what could not be removed, with the reasons."""
        left: list[str] = []
        self.end_clients()
        if self._prepared:
            left += _without_error("prepared branches may be left", self._end_branches)
        if self._has_marks and self.database is not None:
            name = self.datasource.settings.cmr_table
            left += _without_error(f"table {name} is left", TableWork(self.database, name).drop)
        if self._workload is not None:
            left += _without_error("the kit's work is left", self._workload.close)
        left += _without_error("the pool was not closed", self.datasource.close)
        return left

    def end_clients(self) -> None:
        """Drop the clients of a case: the next one needs their connections."""
        Errands().within(_LONGEST_DROP, self._drop_clients)
        self._clients.clear()

    def _drop_clients(self) -> None:
        """Drop them all; a statement that still executes, in a case that was given up, is cancelled first."""
        for action in (Client.cancel_statement, Client.drop):
            for client in list(self._clients):
                with suppress(Exception):
                    action(client)

    def _end_branches(self) -> None:
        recovery = self.recovery()
        until = monotonic() + self.patience
        while True:
            left: set[Xid] = set()
            for record in self._prepared:
                with suppress(Exception):
                    if recovery.rollback(record) is BranchOutcome.UNKNOWN:
                        left.add(record.xid)  # a branch of a foreign name is never listed
            left.update(self.listed())
            if not left or monotonic() > until:
                break
            sleep(_POLL)
        require(not left, f"may be prepared still: {', '.join(sorted(xid.joined for xid in left))}")


def _ended(branch: Branch, commit: bool) -> BranchOutcome:
    if commit:
        branch.start_commit()
        return branch.await_commit()
    branch.start_rollback()
    return branch.await_rollback()


def _without_error(what: str, action: Callable[[], object]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [f"{what}: {' '.join(described(error).split())}"]
    return []
