"""Prepared-transaction slots: every partition's branch keeps one in its database until the transaction is decided."""

from __future__ import annotations

from typing import LiteralString

from txpool.datasource import DataSource
from txpool.errors import OperationalError

#: PostgreSQL's SQLSTATE where PREPARE TRANSACTION finds no free slot.
_NO_SLOT = "53200"
NO_SLOT = "All slots for prepared transactions are taken"
#: The first key of the advisory locks that stand for slots.
_CLASS = 0x74787078
# A lock without a session is a prepared transaction's, and keeps no slot for any job.
_TAKE: LiteralString = """
    select count(*) from (
        select from generate_series(1, current_setting('max_prepared_transactions')::int + (select count(*)
            from pg_locks where locktype = 'advisory' and classid = %(kind)s and objsubid = 2 and pid is null)) slot
        where pg_try_advisory_lock(%(kind)s, slot::int) limit %(slots)s
    ) taken
"""
# What Spark's tasks have prepared is counted once: by the locks of their jobs, or where a write of the "txpool" format
# has prepared it (from number 100000), by itself.
_TAKEN: LiteralString = r"""
    select current_setting('max_prepared_transactions')::int,
        (select count(*) from pg_prepared_xacts where gid !~ '^txp1:.*:[0-9]{1,5}[.][0-9]+[.][0-9]+[.][0-9]+$')
        + (select count(*) from pg_locks where locktype = 'advisory' and classid = %s and objsubid = 2
            and pid is not null) - %s
"""
_KEEPERS: LiteralString = """
    select format('%%s (%%s)', usename, count(*)) from pg_locks l join pg_stat_activity s on s.pid = l.pid
    where l.locktype = 'advisory' and l.classid = %s and l.objsubid = 2 and l.pid <> pg_backend_pid()
    group by usename order by count(*) desc limit 3
"""
_REMEDY = (
    "Write fewer partitions (df.coalesce(n)), or raise max_prepared_transactions in postgresql.conf and restart the "
    "server"
)


class SlotReservation:
    """Slots that are kept for one job among all of txpool's: one advisory lock for each, while its session lives.

    A stranger knows nothing of them, and may take the slots all the same: whoever may connect to the server may
    prepare there. So it is no loss that he may take the locks, too. Either keeps a write from going direct, and
    decides nothing.
    """

    def __init__(self, datasource: DataSource, slots: int) -> None:
        self._driver = datasource.driver_adapter
        self._raw = self._driver.connect()
        try:
            self._raw.autocommit = True
            cursor = self._raw.cursor()
            (self._held,) = cursor.execute(_TAKE, {"kind": _CLASS, "slots": slots}).fetchone()
            #: The server's slots, and how many of them are prepared by others or kept for other jobs.
            self.maximum, self.taken = cursor.execute(_TAKEN, [_CLASS, self._held]).fetchone()
            self.enough: bool = self._held == slots and self.maximum - self.taken >= slots
            #: Roles whose sessions keep slots, for people; only where there are not enough.
            self.keepers = [] if self.enough else [who for (who,) in cursor.execute(_KEEPERS, [_CLASS]).fetchall()]
        except BaseException:
            self.release()
            raise
        if not self.enough:
            self.release()

    def release(self) -> None:
        """Let others have them; may be called again."""
        self._driver.close(self._raw)


def reserve(datasource: DataSource, partitions: int, gtrid: str) -> SlotReservation:
    """Keep a slot for each partition; OperationalError where a datasource has fewer. To be released."""
    reservation = SlotReservation(datasource, partitions)
    if not reservation.enough:
        kept = f" of {', '.join(reservation.keepers)}" if reservation.keepers else ""
        raise OperationalError(
            f"{gtrid}: {partitions} partitions need {partitions} prepared transactions in {datasource.name} at the "
            f"same time, and {max(reservation.maximum - reservation.taken, 0)} are free (max_prepared_transactions is "
            f"{reservation.maximum}, {reservation.taken} are taken, or kept for other jobs{kept}). {_REMEDY}. The job "
            "was not started, nothing of it stays."
        )
    return reservation


def explain_slots(error: Exception, partitions: int | None) -> None:
    """Add to a PREPARE's error what to do about it, where the slots have run out."""
    if getattr(error, "sqlstate", None) == _NO_SLOT:
        error.add_note(
            f"{NO_SLOT}, and this write needs one for each of its {'' if partitions is None else f'{partitions} '}"
            f"partitions. {_REMEDY}."
        )
