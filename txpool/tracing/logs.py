"""The gtrid in log records."""

from __future__ import annotations

import logging

#: A logger's filter sees what is logged to that very logger, and nothing of its children's.
_OURS = ("txpool", "txpool.pool", "txpool.recovery", "txpool.recovery.audit", "txpool.recovery.status")


class GtridFilter(logging.Filter):
    """Gives each record `gtrid`: that of the ambient transaction, or "". Refuses none.

    Add it to a handler, so that `%(gtrid)s` can stand in that handler's format. txpool's own loggers have it. A record
    that has a gtrid already (logged with `extra={"gtrid": …}`) keeps it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "gtrid"):
            from txpool.tm.ambient import current  # which is made of what logs

            transaction = current()
            record.gtrid = "" if transaction is None else transaction.gtrid
        return True


def attach_filter() -> None:
    """Give txpool's own loggers the filter."""
    for name in _OURS:
        logging.getLogger(name).addFilter(_filter)


_filter = GtridFilter()
