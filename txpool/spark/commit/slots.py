"""Reserves prepared slots for a job: the branch of each partition occupies one until the transaction is decided."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from contextlib import nullcontext, suppress
from typing import Any, LiteralString, Protocol

from txpool.datasource import DataSource
from txpool.errors import OperationalError
from txpool.resources.driver.driver import Driver
from txpool.resources.parts import NO_SPARK
from txpool.resources.postgresql.qualified import qualified
from txpool.tm.transaction import Transaction

#: How long a connection that was opened early has to answer.
_PING_SECONDS = 5.0
#: PostgreSQL's SQLSTATE if PREPARE TRANSACTION finds no free slot.
_NO_SLOT_SQLSTATE = "53200"
NO_SLOT = "All slots for prepared transactions are taken"
#: The first key of the advisory locks; each stands for one reserved slot.
_LOCK_CLASS = 0x74787078
# An advisory lock without a pid belongs to a prepared transaction, and reserves no slot.
_RESERVE: LiteralString = qualified(
    """
    select count(*) from (
        select from generate_series(1, current_setting('max_prepared_transactions')::int + (
            select count(*) from pg_locks
            where locktype = 'advisory' and classid = %(kind)s::oid and objsubid = 2 and pid is null)) slot
        where pg_try_advisory_xact_lock(%(kind)s, slot::int) limit %(slots)s
    ) taken
"""
)
# Branches of Spark's tasks are counted by the advisory locks of their jobs. Those of the "txpool" format, whose write
# numbers start at 100000, are counted as prepared transactions.
_COUNT_TAKEN: LiteralString = qualified(
    r"""
    select current_setting('max_prepared_transactions')::int,
        (select count(*) from pg_prepared_xacts where gid !~ '^txp1:.*:[0-9]{1,5}[.][0-9]+[.][0-9]+[.][0-9]+$')
        + ((select count(*) from pg_locks where locktype = 'advisory' and classid = %s::oid and objsubid = 2
            and pid is not null) - %s)
"""
)
_HOLDERS: LiteralString = qualified(
    """
    select format('%%s (%%s)', usename, count(*)) from pg_locks l join pg_stat_activity s on s.pid = l.pid
    where l.locktype = 'advisory' and l.classid = %s::oid and l.objsubid = 2 and l.pid <> pg_backend_pid()
    group by usename order by count(*) desc limit 3
"""
)
# The transaction that holds the locks stays open for as long as the job takes. It keeps no snapshot: vacuum would wait.
_BEGIN: LiteralString = "set transaction isolation level read committed, read only"
#: Without parameters: so it also ends the portal of the statement before it, which has a snapshot.
_STAY: LiteralString = "set local idle_in_transaction_session_timeout = 0"
_REMEDY = (
    "Write fewer partitions (df.coalesce(n)), or raise max_prepared_transactions in postgresql.conf and restart the "
    "server"
)


class Reservation(Protocol):
    """Slots that are reserved for a job."""

    @property
    def enough(self) -> bool:
        """Whether all of them are reserved."""

    @property
    def spare(self) -> int:
        """How many slots nobody holds or has reserved."""

    def session(self) -> Any:
        """The session that holds them, for what reads only; None if there is none, or it was lost."""

    def release_after(self, transaction: Transaction) -> None:
        """Release the slots once the transaction has ended."""

    def release(self) -> None:
        """Release the slots; may be called again."""


class _NoLimit:
    """The server holds as many prepared transactions as there are."""

    enough = True
    spare = 1 << 30

    def session(self) -> None:
        return None

    def release_after(self, transaction: Transaction) -> None:
        pass

    def release(self) -> None:
        pass


class SlotSession:
    """The connection of a reservation, opened in a thread while Spark plans. It is closed if no reservation takes it.

    Used by one thread, once.
    """

    def __init__(self, datasource: DataSource, beside: Executor) -> None:
        self._driver = datasource.driver_adapter
        self._opening: Future[Any] | None = beside.submit(self._driver.connect)

    def take(self) -> Any:
        """The connection; None if it was taken before, or was lost since: planning may run jobs for hours.

        The driver's error if it could not connect.
        """
        opening, self._opening = self._opening, None
        if opening is None:
            return None
        raw = opening.result()
        if not _is_alive(self._driver, raw):
            self._driver.close(raw)
            return None
        return raw

    def __enter__(self) -> SlotSession:
        return self

    def __exit__(self, *error: object) -> None:
        if self._opening is not None:
            with suppress(Exception):
                self._driver.close(self._opening.result())


class SlotReservation:
    """Prepared slots reserved for one job among all jobs of txpool, by an advisory lock for each.

    The locks live as long as a transaction of their own, so that none stays in the session of a pooler. Other programs
    do not see the reservation, and may use the slots: whoever can connect to the server can prepare there. They may
    also take the advisory locks. Either only keeps a write from using strategy direct; no outcome depends on it.
    """

    def __init__(self, datasource: DataSource, slots: int, session: SlotSession | None = None) -> None:
        self._driver = datasource.driver_adapter
        self._raw = (session and session.take()) or self._driver.connect()
        try:
            self._raw.autocommit = False
            cursor = self._raw.cursor()
            cursor.execute(_BEGIN)
            (self._held,) = cursor.execute(_RESERVE, {"kind": _LOCK_CLASS, "slots": slots}).fetchone()
            #: The server's slots, and how many of them are prepared by others or reserved for other jobs.
            self.maximum, self.taken = cursor.execute(_COUNT_TAKEN, [_LOCK_CLASS, self._held]).fetchone()
            self.enough: bool = self._held == slots and self.maximum - self.taken >= slots
            #: The roles that hold reservations, for the error; read only if there are not enough slots.
            self.holders: list[str] = []
            if self.enough:
                cursor.execute(_STAY)
            else:
                self.holders = [role for (role,) in cursor.execute(_HOLDERS, [_LOCK_CLASS]).fetchall()]
                # The server sees the end of a session later, and until then the next reservation would find too few.
                self._raw.rollback()
        except BaseException:
            self.release()
            raise
        if not self.enough:
            self.release()

    @property
    def spare(self) -> int:
        return max(int(self.maximum) - int(self.taken), 0)

    def session(self) -> Any:
        """The session that holds them, for what reads only; None if it was lost."""
        return self._raw if _is_alive(self._driver, self._raw) else None

    def release_after(self, transaction: Transaction) -> None:
        """Release the slots once the transaction has ended."""
        transaction.after_completion(lambda _: self.release())

    def release(self) -> None:
        """Release the slots; may be called again."""
        self._driver.close(self._raw)


def _is_alive(driver: Driver, raw: Any) -> bool:
    try:
        driver.ping(raw, _PING_SECONDS)
    except Exception:
        return False
    return True


def slot_session(datasource: DataSource, beside: Executor) -> SlotSession | nullcontext[None]:
    """Begin to open a reservation's connection; None if the server has no such slots."""
    spark = datasource.resource_manager.spark or NO_SPARK
    return SlotSession(datasource, beside) if spark.counts_slots else nullcontext()


def try_reserve(datasource: DataSource, slots: int, session: SlotSession | None = None) -> Reservation:
    """Reserve slots, as many as are free, over the session if there is one. The caller releases them."""
    spark = datasource.resource_manager.spark or NO_SPARK
    return SlotReservation(datasource, slots, session) if spark.counts_slots else _NoLimit()


def reserve(datasource: DataSource, partitions: int, gtrid: str) -> Reservation:
    """Reserve a slot for each partition. The caller releases them. OperationalError if fewer are free."""
    reservation = try_reserve(datasource, partitions)
    if isinstance(reservation, SlotReservation) and not reservation.enough:
        holders = f" of {', '.join(reservation.holders)}" if reservation.holders else ""
        raise OperationalError(
            f"{gtrid}: {partitions} partitions need {partitions} prepared transactions in {datasource.name} at the "
            f"same time, and {reservation.spare} are free (max_prepared_transactions is "
            f"{reservation.maximum}, {reservation.taken} are taken, or reserved for other jobs{holders}). {_REMEDY}. "
            "The job was not started, nothing of it stays."
        )
    return reservation


def explain_slots(error: Exception, partitions: int | None) -> None:
    """Add a note with the remedy to the error of a PREPARE, if the server had no free slot."""
    if getattr(error, "sqlstate", None) == _NO_SLOT_SQLSTATE:
        error.add_note(
            f"{NO_SLOT}, and this write needs one for each of its {'' if partitions is None else f'{partitions} '}"
            f"partitions. {_REMEDY}."
        )
