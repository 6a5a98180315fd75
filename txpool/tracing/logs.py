"""The gtrid in log records."""

from __future__ import annotations

import logging

#: txpool's loggers. Each needs the filter, since a logger's filter does not apply to its children.
_LOGGERS = (
    "txpool",
    "txpool.control",
    "txpool.messages",
    "txpool.outbox",
    "txpool.pool",
    "txpool.recovery",
    "txpool.recovery.audit",
    "txpool.recovery.status",
    "txpool.waits",
)


class GtridFilter(logging.Filter):
    """Sets `gtrid` in each record: that of the ambient transaction, or "". Lets every record pass.

    Add it to a handler, so that `%(gtrid)s` can stand in that handler's format. txpool's own loggers have it. A record
    that has a gtrid already (logged with `extra={"gtrid": …}`) keeps it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "gtrid"):
            from txpool.tm.ambient import current  # here, since that imports modules which log

            transaction = current()
            record.gtrid = "" if transaction is None else transaction.gtrid
        return True


def attach_filter() -> None:
    """Give txpool's own loggers the filter."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_filter)


_filter = GtridFilter()
