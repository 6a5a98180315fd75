"""PostgreSQL's branch: PREPARE TRANSACTION, and what the database really answered to it."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from enum import Enum
from typing import Any

import psycopg

from txpool import failpoints
from txpool.drivers.base import Driver
from txpool.drivers.libpq import ACTIVE, IDLE, INTRANS, Session, ends_session, failure, value
from txpool.errors import TransactionRolledBack, translate
from txpool.patience import FOREVER, Patience
from txpool.resources.base import Answer, BranchRecord, PreparedBranch, Slots, Vote
from txpool.resources.dialects import why_not_open
from txpool.resources.ending import NOTHING, Ending, Verb
from txpool.resources.local import LocalTransaction
from txpool.xid import Xid, parse

logger = logging.getLogger("txpool")

#: What a server can hold prepared, and what it holds.
SLOTS = "select current_setting('max_prepared_transactions')::int, (select count(*) from pg_prepared_xacts)"


class _Prepare(Enum):
    """How far PREPARE has come."""

    UNSENT = "unsent"
    SENT = "sent"  #: on its way, or answered and not read
    PREPARED = "prepared"
    REFUSED = "refused"  #: answered, and nothing is prepared nor will be
    LOST = "lost"  #: the session was lost before the answer: it may appear later


class PostgreSQLBranch(LocalTransaction):
    """A transaction's part in one PostgreSQL database, over one raw connection of the driver `psycopg`."""

    # Both from its name on: a branch that is alone in its transaction needs neither.
    #: PREPARE's answer adds the evidence.
    record: BranchRecord
    _session: Session

    def __init__(self, datasource: str, driver: Driver, raw: Any, patience: Patience = FOREVER) -> None:
        super().__init__(datasource, driver, raw, patience)
        self._stage = _Prepare.UNSENT
        self._evidence: dict[str, str] = {}
        self._ending: Ending | None = None

    @property
    def idle(self) -> bool:
        return self._stage is _Prepare.UNSENT and super().idle

    def name(self, xid: Xid) -> None:
        self.record = BranchRecord(xid, self.datasource, self._raw.identity, self._evidence)
        self._session = Session(self._raw)

    # -- phase one ----------------------------------------------------------------------------------------------

    def start_prepare(self) -> None:
        """Send PREPARE, and the question for the transaction's id, which is its evidence, in the same message."""
        if self._disturbed:
            raise self._disturbance(self.record.xid.gtrid)
        session = self._session
        if not session.is_alive() or session.status != INTRANS:
            # PostgreSQL would answer ROLLBACK and no error, which psycopg's tpc_prepare() takes for a yes.
            raise self._no(why_not_open(session.status))
        self._stage = _Prepare.SENT
        try:
            session.send(
                f"select pg_current_xact_id_if_assigned(); prepare transaction {session.quoted(self.record.xid.joined)}"
            )
        except psycopg.Error as error:
            self._stage = _Prepare.LOST
            self._note(error)
            raise
        if failpoints.armed:
            failpoints.hit("branch.prepare-sent")

    def await_prepare(self) -> Vote:
        """Read both answers; only the tag of PREPARE TRANSACTION is a yes."""
        try:
            results = self._session.receive(self._patience.vote())
        except psycopg.Error as error:
            self._stage = _Prepare.LOST
            self._note(error)
            raise
        finally:
            self._keep_evidence()
        failed = failure(results)
        if failed is not None:
            # An ERROR is an answer: nothing is prepared. A FATAL may have struck after PREPARE had done its work.
            self._stage = _Prepare.LOST if ends_session(failed) else _Prepare.REFUSED
            self._note(failed)
            raise failed
        tag = results[-1].command_status if results else None
        if tag == b"PREPARE TRANSACTION":
            self._stage = _Prepare.PREPARED
            return Vote.COMMIT
        if tag == b"ROLLBACK":
            self._stage = _Prepare.REFUSED
            raise self._no("the database answered PREPARE TRANSACTION by ROLLBACK")
        self._stage = _Prepare.LOST
        raise self._no("the answer to PREPARE TRANSACTION was lost in an interrupt")

    def _keep_evidence(self) -> None:
        results = self._session.results
        if results and results[0].ntuples:
            self._evidence |= {"xid": value(results[0]) or NOTHING, "timeline": self._raw.timeline}

    def _no(self, why: str) -> TransactionRolledBack:
        gtrid = self.record.xid.gtrid
        return TransactionRolledBack(
            f"datasource {self.datasource} voted to roll back {gtrid}: {why}",
            gtrid=gtrid,
            datasource=self.datasource,
        )

    def _note(self, error: psycopg.Error) -> None:
        translate(error)
        error.add_note(f"datasource {self.datasource} voted to roll back {self.record.xid.gtrid}")

    # -- phase two ----------------------------------------------------------------------------------------------

    def start_commit(self) -> None:
        self._start(Verb.COMMIT)

    def await_commit(self) -> Answer:
        return self._finish(Verb.COMMIT)

    def start_rollback(self) -> None:
        """Send ROLLBACK PREPARED where it is prepared; anything else has an answer to read first."""
        if self._stage is _Prepare.PREPARED:
            self._start(Verb.ROLLBACK)

    def await_rollback(self) -> Answer:
        if self._stage is _Prepare.SENT:
            try:
                self.await_prepare()
            except Exception as error:
                logger.info("%s", error)
        if self._stage is _Prepare.PREPARED:
            return self._finish(Verb.ROLLBACK)
        if self._stage is _Prepare.LOST:
            return self._sweep()
        return self.rollback()

    def _start(self, verb: Verb) -> None:
        self._ending = Ending(self.record, verb, self._driver.connect, self._patience)
        self._ending.start(self._session)

    def _finish(self, verb: Verb) -> Answer:
        if self._ending is None:
            self._start(verb)
        assert self._ending is not None  # noqa: S101 - _start has just made it
        return self._ending.finish()

    def _sweep(self) -> Answer:
        """Roll back what PREPARE may have left, where its answer was lost."""
        if self._session.status == ACTIVE:
            return Answer.UNKNOWN  # the server hangs, and whoever asks it now would wait as well
        # That it wrote nothing says how it ended, but not that it will not appear.
        evidence = {} if self._evidence.get("xid") == NOTHING else self._evidence
        record = replace(self.record, evidence=evidence)
        ending = Ending(record, Verb.ROLLBACK, self._driver.connect, self._patience)
        answered = self._session.is_alive() and self._session.status == IDLE
        if answered:
            ending.start(self._session)
        answer = ending.finish()
        if answer is not Answer.LOST:
            return answer
        # Absent: for good where the session has done with PREPARE, and otherwise it may still appear.
        return Answer.ROLLED_BACK if answered else Answer.UNKNOWN


class PostgreSQLManager:
    """PostgreSQL's resource manager, for recovery: every method opens a connection, and closes it. Thread-safe."""

    def __init__(self, datasource: str, driver: Driver) -> None:
        self._datasource = datasource
        self._driver = driver

    def identity(self) -> str:
        with closing(self._driver.connect()) as raw:
            return str(raw.identity)

    def recover(self) -> list[PreparedBranch]:
        """Ours, in this very database: the view shows the whole cluster's."""
        with closing(self._driver.connect()) as raw:
            rows = raw.execute(
                "select gid, extract(epoch from clock_timestamp() - prepared)::float8, owner::text "
                "from pg_prepared_xacts where database = current_database() order by prepared"
            ).fetchall()
        found = ((parse(gid), age, owner) for gid, age, owner in rows)
        return [PreparedBranch(xid, age, owner) for xid, age, owner in found if xid is not None]

    def slots(self) -> Slots:
        """The whole cluster's."""
        with closing(self._driver.connect()) as raw:
            return Slots(*raw.execute(SLOTS).fetchone())

    def commit(self, record: BranchRecord) -> Answer:
        """COMMIT PREPARED. What is absent is told by its evidence; LOST is absent without any."""
        return Ending(record, Verb.COMMIT, self._driver.connect, level=logging.INFO).alone()

    def rollback(self, record: BranchRecord) -> Answer:
        """ROLLBACK PREPARED. LOST is absent without evidence: gone for good only if a later listing lacks it too."""
        return Ending(record, Verb.ROLLBACK, self._driver.connect, level=logging.INFO).alone()
