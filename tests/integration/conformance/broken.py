"""Resource managers whose branches misbehave, each in one way: PostgreSQL's own but for that."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome, BranchRecord, OpenBranch, PrepareVote, ReadOnlyCheck
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.driver import Driver
from txpool.resources.postgresql.branches.branch import PostgreSQLBranch
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
from txpool.resources.postgresql.dialect import PostgreSQLDialect
from txpool.resources.postgresql.driver import PsycopgDriver
from txpool.resources.postgresql.manager import PostgreSQL
from txpool.resources.recovery_access import BranchRecovery, PreparedBranch
from txpool.xid import Xid

COMMITTED, ROLLED_BACK, UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN


class Recovery(PostgreSQLBranchRecovery):
    """Recovery's access, by one command for each branch."""

    phase_two = None  # type: ignore[assignment]

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return self.end(record, True)

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return self.end(record, False)

    def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
        branch = PostgreSQLBranchRecovery.phase_two(self).branch(record)
        if commit:
            branch.start_commit()
            return branch.await_commit()
        branch.start_rollback()
        return branch.await_rollback()


class ListingRaises(PostgreSQLBranchRecovery):
    """Has a mistake of its own."""

    def recover(self) -> list[PreparedBranch]:
        raise KeyError("a mistake of its own")


class EndRaises(Recovery):
    """Has a mistake of its own."""

    def commit(self, record: BranchRecord) -> BranchOutcome:
        self.end(record, True)
        raise KeyError("a mistake of its own")


class Broken(PostgreSQL):
    """PostgreSQL with another branch, another recovery or another driver."""

    spark = None
    branch_class: ClassVar[type[PostgreSQLBranch]] = PostgreSQLBranch
    recovery_class: ClassVar[type[PostgreSQLBranchRecovery]] = PostgreSQLBranchRecovery
    driver_class: ClassVar[type[PsycopgDriver]] = PsycopgDriver

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        return self.driver_class(settings, recovery=recovery)

    def branch(self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, file: str) -> OpenBranch:
        return self.branch_class(datasource, driver, raw, deadlines)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        return self.recovery_class(settings.name, self.make_driver(settings))


# -- what is prepared -------------------------------------------------------------------------------------------------


class Mistaken(Broken):
    """Its end raises."""

    recovery_class = EndRaises


class Unlistable(Broken):
    """Its listing raises, before any case."""

    recovery_class = ListingRaises


class Forgetful(Broken):
    """What is prepared goes with its client, as in H2; a list in the process says that it is there."""

    listed: ClassVar[set[Xid]] = set()

    class branch_class(PostgreSQLBranch):
        def start_prepare(self) -> None:
            Forgetful.listed.add(self._xid)

        def await_prepare(self) -> PrepareVote:
            return PrepareVote.COMMIT

    class recovery_class(Recovery):
        def recover(self) -> list[PreparedBranch]:
            return [PreparedBranch(xid) for xid in Forgetful.listed]

        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            Forgetful.listed.discard(record.xid)
            return COMMITTED if commit else ROLLED_BACK


class InMemory(Broken):
    """What is prepared is an open transaction, which the server keeps for as long as it runs."""

    kept: ClassVar[dict[Xid, Any]] = {}

    class driver_class(PsycopgDriver):
        def close(self, raw: Any) -> None:
            if raw not in InMemory.kept.values():
                super().close(raw)

    class branch_class(PostgreSQLBranch):
        def start_prepare(self) -> None:
            InMemory.kept[self._xid] = self._raw

        def await_prepare(self) -> PrepareVote:
            return PrepareVote.COMMIT

    class recovery_class(Recovery):
        def recover(self) -> list[PreparedBranch]:
            return [PreparedBranch(xid) for xid in InMemory.kept]

        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            raw = InMemory.kept[record.xid]
            try:
                raw.commit() if commit else raw.rollback()
            except Exception:
                return UNKNOWN
            del InMemory.kept[record.xid]
            raw.close()
            return COMMITTED if commit else ROLLED_BACK


class Obliging(Broken):
    """An xid that is not there has ended as was asked."""

    class recovery_class(Recovery):
        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            outcome = super().end(record._replace(evidence={}), commit)
            said = COMMITTED if commit else ROLLED_BACK
            return outcome if outcome in (COMMITTED, ROLLED_BACK, UNKNOWN) else said


class Overwriting(Broken):
    """A second PREPARE under a name takes the place of the first."""

    class branch_class(PostgreSQLBranch):
        def start_prepare(self) -> None:
            Recovery(self.datasource, self._driver).end(self.record, False)
            super().start_prepare()


class RollsBackByName(Broken):
    """After a PREPARE that was refused, what has the name is rolled back, whosever it is."""

    class branch_class(PostgreSQLBranch):
        def await_rollback(self) -> BranchOutcome:
            super().await_rollback()
            return Recovery(self.datasource, self._driver).end(self.record, False)


class Lenient(Broken):
    """Whatever is prepared is listed, under the name that can be made of its own."""

    class recovery_class(PostgreSQLBranchRecovery):
        def recover(self) -> list[PreparedBranch]:
            raw = self._driver.connect()
            names = raw.execute("select gid from pg_prepared_xacts").fetchall()
            raw.close()
            return [
                PreparedBranch(Xid(":".join((parts := gid.split(":"))[:4]), ":".join(parts[4:]))) for (gid,) in names
            ]


class Unanswering(Broken):
    """A commit has no answer, nor has a rollback in recovery at first, or for ever."""

    unanswered: ClassVar[float] = 1

    class branch_class(PostgreSQLBranch):
        def start_commit(self) -> None:
            pass

        def await_commit(self) -> BranchOutcome:
            return UNKNOWN

    class recovery_class(Recovery):
        def rollback(self, record: BranchRecord) -> BranchOutcome:
            Unanswering.unanswered -= 1
            return UNKNOWN if Unanswering.unanswered >= 0 else super().rollback(record)


class TakesAbsentForDone(Broken):
    """A branch that was there, and is gone when it is to be ended, has ended as was asked."""

    class recovery_class(Recovery):
        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            there = any(each.xid == record.xid for each in self.recover())
            time.sleep(0.05)
            outcome = super().end(record, commit)
            return (COMMITTED if commit else ROLLED_BACK) if there else outcome


class LowerCase(Broken):
    """Names are kept in lower case."""

    class branch_class(PostgreSQLBranch):
        def name(self, xid: Xid) -> None:
            super().name(xid)
            self._quoted = self._quoted.lower()


class AnotherIdentity(Broken):
    """Recovery's access gives the database another identity than its sessions do."""

    class recovery_class(PostgreSQLBranchRecovery):
        def identity(self) -> str:
            return f"{super().identity()}/1"


class ListsTwice(Broken):
    """Each branch is listed once for each of its roles."""

    class recovery_class(PostgreSQLBranchRecovery):
        def recover(self) -> list[PreparedBranch]:
            return super().recover() * 2


class WaitsForOwner(Broken):
    """As MariaDB: nobody can end a branch while the session that prepared it is connected."""

    owners: ClassVar[dict[Xid, Any]] = {}

    class branch_class(PostgreSQLBranch):
        def start_prepare(self) -> None:
            super().start_prepare()
            WaitsForOwner.owners[self._xid] = self._raw

    class recovery_class(Recovery):
        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            owner = WaitsForOwner.owners.get(record.xid)
            return super().end(record, commit) if owner is None or owner.closed else UNKNOWN


class AbsentToItsOwnerIsDone(Broken):
    """The session that prepared takes an xid that is gone for one that has ended as it asks."""

    class branch_class(PostgreSQLBranch):
        def await_commit(self) -> BranchOutcome:
            super().await_commit()
            return COMMITTED


# -- local transactions -----------------------------------------------------------------------------------------------


class SaysReader:
    """Says of everything that it has only read."""

    def __init__(self, datasource: str) -> None:
        self.datasource = datasource

    def start_asking(self) -> None: ...
    def await_answer(self) -> bool:
        return True

    def require_alive(self) -> None: ...
    def start_commit(self) -> None: ...
    def await_commit(self) -> None: ...
    def drop(self) -> None: ...


class AllReaders(Broken):
    class branch_class(PostgreSQLBranch):
        def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
            return SaysReader(self.datasource)


class LeavesReaderPrepared(Broken):
    """A branch that has only read is prepared, and its commit is not sent."""

    class branch_class(PostgreSQLBranch):
        def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
            return None

        def start_commit(self) -> None: ...
        def await_commit(self) -> BranchOutcome:
            return COMMITTED if self._evidence.get("xid") == "none" else self._started_now()

        def _started_now(self) -> BranchOutcome:
            super().start_commit()
            return super().await_commit()


class AnyAnswerIsYes(Broken):
    """As psycopg's tpc_prepare(): any answer to PREPARE without an error is a yes."""

    class branch_class(PostgreSQLBranch):
        def start_prepare(self) -> None:
            self._raw.session.send(f"prepare transaction {self._quoted}")

        def await_prepare(self) -> PrepareVote:
            self._raw.session.receive()
            return PrepareVote.COMMIT

        def await_commit(self) -> BranchOutcome:
            super().await_commit()
            return COMMITTED


class AnyCommitIsOne(Broken):
    """As psycopg's commit(): the answer ROLLBACK to COMMIT is not looked at."""

    class driver_class(PsycopgDriver):
        class Dialect(PostgreSQLDialect):
            def commit(self, raw: Any) -> None:
                raw.commit()

        dialect = Dialect()


class BlindToCommit(Broken):
    """The user's own COMMIT and ROLLBACK are not noticed."""

    class driver_class(PsycopgDriver):
        def ended_by(self, raw: Any, raw_cursor: Any) -> str | None:
            return None


# -- the small protocol -----------------------------------------------------------------------------------------------


class CommitsAtRollback(Broken):
    """A rollback of what is not prepared keeps it."""

    class branch_class(PostgreSQLBranch):
        def start_rollback(self) -> None:
            self._raw.commit()

        def await_rollback(self) -> BranchOutcome:
            return ROLLED_BACK


class KeepsFirstName(Broken):
    """Its branches keep their first name, and it does not say that."""

    class branch_class(PostgreSQLBranch):
        named = False

        def name(self, xid: Xid) -> None:
            if not self.named:
                super().name(xid)
                self.named = True


class SureOfItsServer(Broken):
    """What is gone is always said to be gone from the server that has prepared it."""

    class recovery_class(Recovery):
        def end(self, record: BranchRecord, commit: bool) -> BranchOutcome:
            outcome = super().end(record, commit)
            return outcome if outcome in (COMMITTED, ROLLED_BACK) else BranchOutcome.ABSENT


class RemembersAll(Broken):
    """Each end is remembered as one that nobody had asked for."""

    class branch_class(PostgreSQLBranch):
        remembers_end = True

        def forget_end(self) -> None:
            """Nothing."""
