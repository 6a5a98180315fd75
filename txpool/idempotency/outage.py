"""Whose fault a failure is: a try counts against a message only if the message may be the reason."""

from __future__ import annotations

from txpool.errors import ConfigurationError, LogError, PoolClosed, PoolTimeout, TransactionRolledBack, chain
from txpool.resource_managers import known


def is_outage(error: BaseException) -> bool:
    """Whether work has failed since a datasource cannot be reached, or in a conflict with others.

    Then nothing says that the work itself is the reason. It is known of datasources alone: where else the work connects
    to may depend on the message. Only the error and what it names as its causes count, not what was handled before.
    """
    if isinstance(error, ExceptionGroup):  # of tasks
        return all(is_outage(each) for each in error.exceptions)
    at_its_end, managers = isinstance(error, TransactionRolledBack), known()
    return any(
        isinstance(each, PoolTimeout | PoolClosed | LogError | ConfigurationError)
        or (type(each).__module__ == "kafka.errors" and _is_brokers(each))
        or any(manager.is_outage(each) or manager.is_transient(each, at_its_end=at_its_end) for manager in managers)
        for each in chain(error, contexts=False)
    )


def _is_brokers(error: BaseException) -> bool:
    """Whether it is no message that has made Kafka refuse: a file names topics and users."""
    return getattr(error, "retriable", False) or "Auth" in type(error).__name__
