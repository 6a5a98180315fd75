"""The keys of other products, and what they are called here.

HikariCP, Agroal (and Quarkus), DBCP2, c3p0, Narayana, SQLAlchemy and psycopg_pool. Their users bring these keys along,
and the nearest spelling would lead some of them to a key that means something else, or has another unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from txpool.config.special_values import Special, special_values, translated_value

#: The unit of a key, as the end of a duration, and its name.
UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_SEPARATORS = re.compile(r"[-_. ]+")
#: Values that are no numbers, and are shown again: no other could be a secret's.
_WORDS_SHOWN: Final = frozenset({"true", "false"})


class OtherWord(NamedTuple):
    """What another product's key is here: a `key`, whose value has the `unit` there, or no key, and the `reason`.

    `zero` and `below` are what 0 and a negative value become.
    """

    product: str
    key: str = ""
    unit: str = ""
    reason: str = ""
    zero: Special | None = None
    below: Special | None = None

    def advice(self, value: str, *, argument: bool = False) -> str:
        """What to write instead, as the end of an error's sentence; `argument` is for a call, not for a file."""
        if not self.key:
            return f"that is {self.product}'s; here {self.reason}: leave it out"
        return f"that is {self.whose}; write {self.translation(value, _as_argument if argument else _as_line)}"

    @property
    def whose(self) -> str:
        """The product, with the unit of its values: HikariCP's, in milliseconds."""
        return f"{self.product}'s{f', in {UNITS[self.unit]}' if self.unit else ''}"

    def translation(self, value: str, spelled: Callable[[str, str], str]) -> str:
        """The key here with the value in its unit. `spelled` writes a key and a value, which may be empty."""
        if value.lower() in _WORDS_SHOWN and not self.unit:
            found: Special | None = Special(value)
        else:
            found = translated_value(value, self.unit, self.zero, self.below)
        written = spelled(self.key, found.right if found is not None else "")
        if found is None and self.unit:
            written += ", such as 30s"
        if found is not None and found.also[0]:
            written += f" and {spelled(*found.also)}"
        notes = "; ".join(filter(None, (self.reason, found.note if found is not None else "")))
        return f"{written}{f' ({notes})' if notes else ''}"


def _as_line(key: str, value: str) -> str:
    return f"{key}{value and f' = {value}'}"


def _as_argument(key: str, value: str) -> str:
    if value.lower() in _WORDS_SHOWN or not value:
        value = value.capitalize()
    elif not value.isdecimal():
        value = f'"{value}"'
    return f"{_SEPARATORS.sub('_', key)}{value and f'={value}'}"


def other_word(name: str) -> OtherWord | None:
    """The other product's word that a key is, whatever its case, its separators and what stands before its last dot."""
    for word in (name, name.rpartition(".")[2]):
        found = _WORDS.get(word) or _WORDS.get(unseparated(word))
        if found is not None:
            return found
    return None


_CHECKED = "a connection is checked when it is taken, unless it was used within pool.check-bypass"
_DRIVER = (
    "the driver is named by driver = psycopg, sqlite3, pymysql, mysqlclient or jdbc; with jdbc, "
    "xaDataSourceClassName or jdbc.driver-class names its Java class"
)
_STATEMENTS = "psycopg prepares statements by itself, see driver.prepare_threshold and driver.prepared_max"
_TURN = "a pool hands out the connection that was used last, and serves waiting threads in turn"

_NO_PORT = "recovery listens on no port, but for its page by status.address; `txpool-recovery scan` scans at once"
_LIVENESS = "whether a process lives is seen by a lock that it holds, and never by its age"
_OVERLAPPED = "all databases of a transaction always work at the same time"

_ROWS: Final = """
HikariCP       maximumPoolSize                    pool.max-size
HikariCP       minimumIdle                        pool.min-size
HikariCP       connectionTimeout                  pool.max-wait            ms
HikariCP       idleTimeout                        pool.idle-timeout        ms
HikariCP       maxLifetime                        pool.max-lifetime        ms
HikariCP       keepaliveTime                      pool.keepalive           ms
HikariCP       validationTimeout                  pool.check-timeout       ms
HikariCP       leakDetectionThreshold             pool.leak-threshold      ms
HikariCP       connectionInitSql                  pool.initial-sql
HikariCP       readOnly                           transaction.read-only
HikariCP       jdbcUrl                            url
HikariCP       username                           user
HikariCP       poolName                           name
Agroal         maxSize                            pool.max-size
Agroal         max-size                           pool.max-size
Agroal         minSize                            pool.min-size
Agroal         min-size                           pool.min-size
Agroal         acquisitionTimeout                 pool.max-wait            s
Agroal         acquisitionTimeout_ms              pool.max-wait            ms
Agroal         acquisitionTimeout_s               pool.max-wait            s
Agroal         acquisitionTimeout_m               pool.max-wait            m
Agroal         validationTimeout_ms               pool.keepalive           ms
Agroal         validationTimeout_s                pool.keepalive           s
Agroal         validationTimeout_m                pool.keepalive           m
Agroal         backgroundValidationInterval       pool.keepalive           s
Agroal         idleValidation_ms                  pool.check-bypass        ms
Agroal         idleValidation_s                   pool.check-bypass        s
Agroal         idleValidation_m                   pool.check-bypass        m
Agroal         leakTimeout_ms                     pool.leak-threshold      ms
Agroal         leakTimeout_s                      pool.leak-threshold      s
Agroal         leakTimeout_m                      pool.leak-threshold      m
Agroal         leakDetectionInterval              pool.leak-threshold      s
Agroal         reapTimeout_ms                     pool.idle-timeout        ms
Agroal         reapTimeout_s                      pool.idle-timeout        s
Agroal         reapTimeout_m                      pool.idle-timeout        m
Agroal         idleRemovalInterval                pool.idle-timeout        s
Agroal         maxLifetime_ms                     pool.max-lifetime        ms
Agroal         maxLifetime_s                      pool.max-lifetime        s
Agroal         maxLifetime_m                      pool.max-lifetime        m
Agroal         initialSql                         pool.initial-sql
Agroal         newConnectionSql                   pool.initial-sql
Agroal         jdbcTransactionIsolation           transaction.isolation
Agroal         transactionIsolationLevel          transaction.isolation
Agroal         principal                          user
Agroal         credential                         password
Agroal         recoveryPrincipal                  recovery.user
Agroal         recoveryUsername                   recovery.user
Agroal         recoveryCredential                 recovery.password
Agroal         transactionRequirement             transaction.required
DBCP2          maxTotal                           pool.max-size
DBCP2          maxActive                          pool.max-size
DBCP2          minIdle                            pool.min-size
DBCP2          initialSize                        pool.min-size
DBCP2          maxWaitMillis                      pool.max-wait            ms
DBCP2          maxWait                            pool.max-wait            ms
DBCP2          maxWaitDuration                    pool.max-wait            ms
DBCP2          maxConnLifetimeMillis              pool.max-lifetime        ms
DBCP2          minEvictableIdleTimeMillis         pool.idle-timeout        ms
DBCP2          softMinEvictableIdleTimeMillis     pool.idle-timeout        ms
DBCP2          timeBetweenEvictionRunsMillis      pool.keepalive           ms
DBCP2          durationBetweenEvictionRuns        pool.keepalive           ms
DBCP2          removeAbandonedTimeout             pool.leak-threshold      s
DBCP2          validationQueryTimeout             pool.check-timeout       s
DBCP2          connectionInitSqls                 pool.initial-sql
DBCP2          defaultReadOnly                    transaction.read-only
DBCP2          defaultTransactionIsolation        transaction.isolation
c3p0           maxPoolSize                        pool.max-size
c3p0           minPoolSize                        pool.min-size
c3p0           initialPoolSize                    pool.min-size
c3p0           checkoutTimeout                    pool.max-wait            ms
c3p0           maxIdleTime                        pool.idle-timeout        s
c3p0           maxConnectionAge                   pool.max-lifetime        s
c3p0           idleConnectionTestPeriod           pool.keepalive           s
c3p0           unreturnedConnectionTimeout        pool.leak-threshold      s
Narayana       maxConnections                     pool.max-size
Narayana       poolConnections                    pool.enabled
Narayana       performImmediateCleanupOfCommitMarkableResourceBranches   cmr.immediate-cleanup
Narayana       performImmediateCleanup            cmr.immediate-cleanup
Narayana       immediateCleanup                   cmr.immediate-cleanup
Narayana       commitMarkableResourceRecordDeleteBatchSize   cmr.batch-size
Narayana       recordDeleteBatchSize              cmr.batch-size
Narayana       batchSize                          cmr.batch-size
Narayana       defaultCommitMarkableTableName     cmr.table
Narayana       nodeIdentifier                     node.name
Narayana       objectStoreDir                     log.url
Narayana       defaultTimeout                     transaction.timeout      s
Narayana       periodicRecoveryPeriod             recovery.period          s
Narayana       recoveryBackoffPeriod              recovery.backoff         s
Narayana       expiryScanInterval                 recovery.expiry.interval h
Narayana       xaRecoveryNodes                    recovery.nodes
Narayana       xaResourceOrphanFilterClassNames   recovery.orphan-filters
Narayana       expiryScannerClassNames            recovery.expiry.scanners
Narayana       recoveryModuleClassNames           recovery.modules
Narayana       orphanSafetyInterval               recovery.backoff         ms
Narayana       xaResourceRecoveryClassNames       datasources
Narayana       commitMarkableResourceTableNameMap                    cmr.table
Narayana       performImmediateCleanupOfCommitMarkableResourceBranchesMap   cmr.immediate-cleanup
Narayana       commitMarkableResourceRecordDeleteBatchSizeMap        cmr.batch-size
SQLAlchemy     pool_size                          pool.max-size
SQLAlchemy     pool_timeout                       pool.max-wait            s
SQLAlchemy     pool_recycle                       pool.max-lifetime        s
SQLAlchemy     isolation_level                    transaction.isolation
psycopg_pool   conninfo                           url
psycopg_pool   max_size                           pool.max-size
psycopg_pool   min_size                           pool.min-size
psycopg_pool   timeout                            pool.max-wait            s
psycopg_pool   max_idle                           pool.idle-timeout        s
psycopg_pool   max_lifetime                       pool.max-lifetime        s
"""

_NOTES: Final = {
    "pool_size": "it is SQLAlchemy's pool_size and max_overflow together",
    "initialSize": "so many are opened, and kept open",
    "initialPoolSize": "so many are opened, and kept open",
    "objectStoreDir": "as sqlite:///folder",
    "xaResourceRecoveryClassNames": "recovery's file names the files of all its datasources, and recovery connects by "
    "them, as recovery.user if such a file has that",
    "recoveryModuleClassNames": "only those of your own, beside recovery's; a resource of your own is recovered once "
    "datasources names its file",
    "commitMarkableResourceTableNameMap": "in the file of each such datasource, beside mode = cmr",
    "performImmediateCleanupOfCommitMarkableResourceBranchesMap": "in the file of each such datasource",
    "commitMarkableResourceRecordDeleteBatchSizeMap": "in the file of each such datasource",
    "jdbcUrl": "without jdbc: before it, unless driver = jdbc",
}

_WITHOUT: Final = {
    "testOnBorrow": ("DBCP2", _CHECKED),
    "testOnReturn": ("DBCP2", _CHECKED),
    "testOnCreate": ("DBCP2", _CHECKED),
    "testWhileIdle": ("DBCP2", f"{_CHECKED}; pool.keepalive checks idle ones"),
    "testConnectionOnCheckout": ("c3p0", _CHECKED),
    "testConnectionOnCheckin": ("c3p0", _CHECKED),
    "validationQuery": ("DBCP2", f"{_CHECKED}, by an empty query"),
    "connectionTestQuery": ("HikariCP", f"{_CHECKED}, by an empty query"),
    "preferredTestQuery": ("c3p0", f"{_CHECKED}, by an empty query"),
    "validationQuerySql": ("Agroal", f"{_CHECKED}, by an empty query"),
    "connectionValidator": ("Agroal", _CHECKED),
    "validateOnBorrow": ("Agroal", _CHECKED),
    "fastFailValidation": ("DBCP2", _CHECKED),
    "pool_pre_ping": ("SQLAlchemy", _CHECKED),
    "max_overflow": ("SQLAlchemy", "pool.max-size is SQLAlchemy's pool_size and max_overflow together"),
    "check": ("psycopg_pool", _CHECKED),
    "maxIdle": ("DBCP2", "idle connections above pool.min-size are closed after pool.idle-timeout"),
    "numTestsPerEvictionRun": ("DBCP2", "all idle connections are looked at"),
    "acquireIncrement": ("c3p0", "a pool opens one connection for each taker that needs one"),
    "acquireRetryAttempts": ("c3p0", "a connect that fails is an error at once, and is tried again in the background"),
    "acquireRetryDelay": ("c3p0", "a connect that fails is an error at once, and is tried again in the background"),
    "reconnect_timeout": ("psycopg_pool", "a pool never ceases to try again in the background"),
    "num_workers": ("psycopg_pool", "each taker opens its own connection"),
    "max_waiting": ("psycopg_pool", "the number of waiting threads has no limit, and pool.max-wait limits their time"),
    "initializationFailTimeout": (
        "HikariCP",
        "no connection is opened before it is needed, unless pool.min-size says so",
    ),
    "isolateInternalQueries": ("HikariCP", "a check runs outside of any transaction"),
    "allowPoolSuspension": ("HikariCP", "any pool can be suspended"),
    "autoCommit": ("HikariCP", "a connection begins without, as PEP 249 has it: set connection.autocommit in code"),
    "defaultAutoCommit": ("DBCP2", "a connection begins without, as PEP 249 has it: set connection.autocommit in code"),
    "autocommit": ("PEP 249", "a connection begins without, as PEP 249 has it: set connection.autocommit in code"),
    "driverClassName": ("HikariCP", _DRIVER),
    "dataSourceClassName": ("HikariCP", _DRIVER),
    "providerClassName": ("Agroal", _DRIVER),
    "driverClass": ("c3p0", _DRIVER),
    "commitMarkableResourceJNDINames": (
        "Narayana",
        "mode = cmr in a datasource's own file makes it commit-markable, and datasources names that file",
    ),
    "commitedTransactionRetryLimit": (
        "Narayana",
        "recovery gives no decided transaction up: each scan tries again, and alarm.in-doubt tells when it takes long",
    ),
    "recoveryActivatorClassNames": ("Narayana", _NO_PORT),
    "recoveryPort": ("Narayana", _NO_PORT),
    "recoveryAddress": ("Narayana", _NO_PORT),
    "recoveryListener": ("Narayana", _NO_PORT),
    "transactionStatusManagerPort": ("Narayana", _LIVENESS),
    "transactionStatusManagerAddress": ("Narayana", _LIVENESS),
    "transactionStatusManagerExpiryTime": ("Narayana", _LIVENESS),
    "notifyCommitMarkableResourceRecoveryModuleOfCompleteBranches": (
        "Narayana",
        "a mark is deleted by cmr.batch-size and cmr.immediate-cleanup alone",
    ),
    "lastResourceOptimisationInterfaceClassName": ("Narayana", "mode = last-resource in a datasource's file says so"),
    "allowMultipleLastResources": ("Narayana", "a transaction has one last resource at most"),
    "commitOnePhase": ("Narayana", "one database alone always commits in one phase"),
    "asyncPrepare": ("Narayana", _OVERLAPPED),
    "asyncCommit": ("Narayana", _OVERLAPPED),
    "asyncRollback": ("Narayana", _OVERLAPPED),
    "enableStatistics": ("Narayana", "numbers come by DataSource.statistics() and the metrics"),
    "objectStoreType": ("Narayana", "log.url says by its beginning what keeps the log: sqlite:, postgresql: or mysql:"),
    "jdbcAccess": ("Narayana", "log.url names the log's database: postgresql://… or mysql://…"),
    "createDb": ("Narayana", "no database is created here"),
    "registerMbeans": ("HikariCP", "numbers come by DataSource.statistics() and the metrics"),
    "metricsEnabled": ("Agroal", "numbers come by DataSource.statistics() and the metrics"),
    "removeAbandonedOnBorrow": ("DBCP2", "no connection is taken from its user: pool.leak-threshold reports it"),
    "removeAbandonedOnMaintenance": ("DBCP2", "no connection is taken from its user: pool.leak-threshold reports it"),
    "logAbandoned": ("DBCP2", "pool.leak-threshold reports a connection that is held for long, with its stack"),
    "enhancedLeakReport": ("Agroal", "pool.leak-threshold reports a connection that is held for long, with its stack"),
    "rollbackOnReturn": ("DBCP2", "what is open is always rolled back when a connection is given back"),
    "reset_on_return": ("SQLAlchemy", "what is open is always rolled back when a connection is given back"),
    "pool_reset_on_return": ("SQLAlchemy", "what is open is always rolled back when a connection is given back"),
    "poolPreparedStatements": ("DBCP2", _STATEMENTS),
    "maxOpenPreparedStatements": ("DBCP2", _STATEMENTS),
    "maxStatements": ("c3p0", _STATEMENTS),
    "lifo": ("DBCP2", _TURN),
    "pool_use_lifo": ("SQLAlchemy", _TURN),
    "trackJdbcResources": ("Agroal", "a cursor ends with its connection"),
    "multipleAcquisition": ("Agroal", "a transaction has one connection of a datasource, however often it is taken"),
    "flushOnClose": ("Agroal", "a connection is closed when it is given back only where it cannot be reset"),
    "exceptionSorter": ("Agroal", "the driver itself tells which errors end a connection"),
}


def unseparated(word: str) -> str:
    """A key in lower case without its separators."""
    return _SEPARATORS.sub("", word).lower()


def _table() -> dict[str, OtherWord]:
    words = [(word, OtherWord(product, reason=why)) for word, (product, why) in _WITHOUT.items()]
    for row in _ROWS.split("\n"):
        match row.split():
            case [product, word, key, *unit]:
                words.append(
                    (word, OtherWord(product, key, "".join(unit), _NOTES.get(word, ""), *special_values(word, key)))
                )
    # HikariCP's maxLifetime is in milliseconds, and psycopg_pool's max_lifetime in seconds: a word as it is spelled by
    # its product is that product's, and in another spelling it is the first one's.
    found: dict[str, OtherWord] = {}
    for word, other in words:
        found.setdefault(unseparated(word), other)
    return found | dict(words)


_WORDS: Final = _table()
