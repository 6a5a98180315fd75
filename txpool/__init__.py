"""Atomic, exactly-once work over several databases from Python and Spark.

A PEP 249 module: connections come from a pool, and join the ambient transaction by themselves.
"""

from __future__ import annotations

from typing import Any

from txpool import control as _control  # noqa: F401 - listens where the configuration says so
from txpool import waits as _waits  # noqa: F401 - looks into statements that wait
from txpool.aio import aconnect
from txpool.config.settings import CoordinatorSettings as _CoordinatorSettings
from txpool.datasource import DataSource, connect, register
from txpool.datasource import open_file as _open_file
from txpool.datasource.registry import add as _add
from txpool.dbapi.types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)
from txpool.engine import create_async_engine, create_engine
from txpool.errors import (
    AlreadyDone,
    ConfigurationError,
    DatabaseError,
    DataError,
    EmptyTransactionWarning,
    Error,
    HeuristicCommit,
    HeuristicError,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    IntegrityError,
    InterfaceError,
    InternalError,
    LogError,
    LogUnknown,
    NotSupportedError,
    OperationalError,
    OutsideTransactionWarning,
    PoolClosed,
    PoolTimeout,
    ProgrammingError,
    TransactionError,
    TransactionInDoubt,
    TransactionRolledBack,
    TransactionTimeout,
    Warning,  # noqa: A004 - the name is PEP 249's
)
from txpool.files import folder
from txpool.messages import consumer, session
from txpool.outbox import Outbox, once
from txpool.pool import PoolListener, PoolStatistics
from txpool.tm import manager as _manager
from txpool.tm.ambient import current
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, resume, rollback, status, suspend
from txpool.tm.demarcation.transactional import transactional
from txpool.tm.lifetime import TransactionScoped
from txpool.tm.observers import observe
from txpool.tm.transaction import Transaction

__version__ = "0.1.0"

#: PEP 249: this is version 2.0 of the interface.
apilevel = "2.0"
#: PEP 249: threads may share the module and connections.
threadsafety = 2
#: PEP 249: of psycopg's connections; each connection's own is its `paramstyle` (sqlite3's is `qmark`).
paramstyle = "pyformat"


def configure(source: Any = None, /, **options: Any) -> None:
    """Set this process's node name, decision log and timeout, from a .properties file or by keyword arguments.

    Keyword arguments are the file's keys with underscores: `node_name`, `log_url`, `log_create`,
    `transaction_timeout`. The log is opened, so that a wrong one is an error here. The datasources of the key
    `datasources` are registered. Errors: ConfigurationError, LogError; node name, log and timeout are as before then.
    Call it when the program starts: transactions that are open keep their log.
    """
    settings = _CoordinatorSettings.load(source, **options)
    for datasource in [_open_file(path) for path in settings.datasources]:
        _add(datasource)
    _manager.put_in_force(settings)


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "AlreadyDone",
    "Binary",
    "ConfigurationError",
    "DataError",
    "DataSource",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "EmptyTransactionWarning",
    "Error",
    "HeuristicCommit",
    "HeuristicError",
    "HeuristicHazard",
    "HeuristicMixed",
    "HeuristicRollback",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "LogError",
    "LogUnknown",
    "NotSupportedError",
    "OperationalError",
    "Outbox",
    "OutsideTransactionWarning",
    "PoolClosed",
    "PoolListener",
    "PoolStatistics",
    "PoolTimeout",
    "ProgrammingError",
    "Status",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Transaction",
    "TransactionError",
    "TransactionInDoubt",
    "TransactionRolledBack",
    "TransactionScoped",
    "TransactionTimeout",
    "Warning",
    "aconnect",
    "apilevel",
    "begin",
    "commit",
    "configure",
    "connect",
    "consumer",
    "create_async_engine",
    "create_engine",
    "current",
    "folder",
    "observe",
    "once",
    "paramstyle",
    "register",
    "resume",
    "rollback",
    "session",
    "status",
    "suspend",
    "threadsafety",
    "transaction",
    "transactional",
]
