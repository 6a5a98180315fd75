"""once(): what comes more than once, as messages do, is done once. Its key is a row beside the work."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from txpool.datasource import find
from txpool.errors import ProgrammingError, described
from txpool.idempotency.once import BLOCK, UNKNOWN_FUNCTION, IdempotentWork, checked_id
from txpool.tm.ambient import current
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.idempotency.once import RecordIn

logger = logging.getLogger("txpool")

#: The target of the records of keys, which is no table's name.
TARGET: Final = "once()"
#: After how many keys the old ones are deleted.
_EVERY = 1000
#: How many keys this process has written, by datasource.
_written: WeakKeyDictionary[DataSource, int] = WeakKeyDictionary()


def once(key: str, record_in: RecordIn) -> bool:
    """Whether this is the first time that the key comes: if so, it is recorded within the ambient transaction.

    False if a transaction that has committed has recorded it, or this one has. `record_in` is a datasource that the
    work itself writes to: a file, a name or a DataSource. Its row is kept for `once.keep`. Another transaction that has
    recorded the key and not ended is awaited for some ten seconds. Errors: ProgrammingError outside a transaction, or
    for a key that is no line of text; OperationalError if the other has not ended; the driver's own.
    """
    ambient = current()
    if ambient is None:
        raise ProgrammingError(
            "once() outside a transaction: nothing was recorded. Call it within `with txpool.transaction():`, beside "
            "the work that is to be done once"
        )
    source = find(record_in)
    work = IdempotentWork(source, checked_id(key), TARGET, ambient.gtrid, BLOCK, UNKNOWN_FUNCTION)
    earlier = work.claim_within(ambient)
    if earlier is None and source.settings.once_keep is not None:
        written = _written.get(source, 0)
        _written[source] = written + 1
        if written % _EVERY == 0:
            ambient.after_completion(partial(_forget, source, source.settings.once_keep))
    return earlier is None


def _forget(source: DataSource, keep: float, status: Status) -> None:
    """Delete the rows that are older than `once.keep`, in a transaction of their own."""
    records = source.resource_manager.records
    if status is not Status.COMMITTED or records is None:
        return
    try:
        with transaction(), records.opened(source) as cursor:
            records.forget(cursor, TARGET, keep)
    except Exception as error:
        logger.warning("%s: old keys of once() could not be deleted: %s", source.name, described(error))
