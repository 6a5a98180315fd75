"""The keys of configuration files: three tables, for datasources, for the coordinator and for recovery.

Reading the values, naming the nearest key for an unknown one and the configuration reference all use these tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txpool.characteristics import LEVELS
from txpool.config.properties import Properties, word_of
from txpool.config.secrets import FUNCTION
from txpool.resource_managers import DRIVERS

MODES = ("xa", "cmr", "last-resource", "local")


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `kind` is the name of the method of Properties that reads it, `limits` are that method's arguments."""

    name: str
    kind: str
    default: str | None
    doc: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    alias: str | None = None

    @property
    def word(self) -> str:
        """The key as an argument's or a field's name: `pool_max_size`; in capitals, the end of a variable's name."""
        return word_of(self.name)

    @property
    def type(self) -> str:
        """The values that the key may have, for people."""
        words = " or ".join(self.limits.get("choices", ())) or self.kind
        return f"{words} or none" if self.limits.get("none") else words

    def read(self, values: Properties) -> Any:
        """The typed value, or None."""
        return getattr(values, self.kind)(self.name, **self.limits)


_NAME = {"pattern": r"[A-Za-z0-9_.-]{1,32}", "right": "1 to 32 of the characters A-Z a-z 0-9 _ . -"}
_NODE = {"pattern": r"[A-Za-z0-9_.-]{1,28}", "right": "1 to 28 of the characters A-Z a-z 0-9 _ . -"}
_NODES = {"pattern": rf"\*|{_NODE['pattern']}", "right": "* alone, or names of nodes"}
_CLASSES = {
    "pattern": r"[a-z][a-z-]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+",
    "right": "their names, or dotted paths of classes",
}
_PUBLIC = {"pattern": "healthz|metrics", "right": "healthz, metrics or both"}
_FACTORIES = {"pattern": FUNCTION, "right": "modules and their functions, package.module:function"}
_FUNCTION = {"pattern": FUNCTION, "right": "a module and its function, package.module:function"}
_JAVA_CLASS = {"pattern": r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", "right": "the full name of a Java class"}
_NONE = {"none": True}
_POSITIVE = {"positive": True}

DATASOURCE_KEYS = (
    Key("name", "string", None, "The datasource's name. Without it, the file's name without .properties.", _NAME),
    Key(
        "driver",
        "choice",
        None,
        "The DB-API driver, or package.module:Class for a resource of your own. A file with xaDataSourceClassName is "
        "jdbc's.",
        {"choices": DRIVERS},
    ),
    Key(
        "xaDataSourceClassName",
        "string",
        None,
        "JDBC: the Java class javax.sql.XADataSource, such as org.h2.jdbcx.JdbcDataSource. Each further key of a plain "
        "name is a setter of that class: databaseName = orders calls setDatabaseName.",
        _JAVA_CLASS,
    ),
    Key(
        "jdbc.driver-class",
        "string",
        None,
        "JDBC without an XADataSource: the Java class java.sql.Driver. mode = cmr, last-resource or local.",
        _JAVA_CLASS,
    ),
    Key(
        "jdbc.classpath",
        "globs",
        None,
        "JDBC: the driver's jars and folders, with commas between them, relative to the file. A * stands for any jars.",
    ),
    Key("jvm.options", "string", None, "JDBC: options of the Java virtual machine, which the first datasource starts."),
    Key(
        "h2.accept",
        "choice",
        None,
        "H2 commits in silence where a program executes COMMIT or DDL in a transaction. txpool refuses such "
        "statements, and a vote after one. silent-commits accepts them: what H2 commits so is not part of the "
        "transaction.",
        {"choices": ("silent-commits",)},
    ),
    Key("mode", "choice", "xa", "How it takes part in a transaction.", {"choices": MODES}),
    Key(
        "url",
        "url",
        None,
        "postgresql://user@host:port/database, mysql://… likewise, sqlite:///file, or jdbc:….",
        alias="URL",
    ),
    Key("user", "string", None, "The user. Leave it out where the url names one.", alias="User"),
    Key(
        "password", "secret", None, "The password, best as a reference: ${env:NAME} or ${file:PATH}.", alias="Password"
    ),
    Key(
        "credentials",
        "string",
        None,
        "package.module:function. It is called before each connection is opened, and returns a password, or "
        "(user, password).",
        _FUNCTION,
    ),
    Key(
        "pool.enabled",
        "boolean",
        "true",
        "false is for PgBouncer: each connect() opens a connection, and close() closes it.",
    ),
    Key("pool.min-size", "integer", "0", "How many connections are kept open.", {"min": 0}),
    Key("pool.max-size", "integer", "10", "How many connections are open at most.", {"min": 1}),
    Key(
        "pool.max-wait",
        "duration",
        "30",
        "The longest wait of a connect(): for a free connection, for its check, for a new one.",
    ),
    Key("pool.idle-timeout", "duration", "10m", "An idle connection above min-size is closed after this time.", _NONE),
    Key("pool.max-lifetime", "duration", "30m", "A connection is replaced after this time, less up to 2.5 %.", _NONE),
    Key(
        "pool.keepalive",
        "duration",
        "none",
        "A connection that has been idle for this time, less up to 2.5 %, is asked whether it is alive, "
        "again and again.",
        _NONE | _POSITIVE,
    ),
    Key(
        "pool.check-bypass",
        "duration",
        "500ms",
        "A connection that was used within this time is not checked when it is taken.",
    ),
    Key(
        "pool.check-timeout",
        "duration",
        "5s",
        "A connection has this time to answer its check when it is taken, and its reset when it is given "
        "back. One that does not answer is dropped.",
        _POSITIVE,
    ),
    Key(
        "pool.leak-threshold",
        "duration",
        "none",
        "A connection that is held for longer is reported, with the stack of its taking.",
        _NONE,
    ),
    Key(
        "pool.reset",
        "choice",
        "auto",
        "How a session is cleaned when it is given back. auto cleans what its statements leave behind, by their text "
        "and command tag; in PostgreSQL also what a function may leave whose name is in the text. It does not see what "
        "a trigger or a view calls, nor in MariaDB and MySQL what a stored function does inside. always cleans all of "
        "it, for a round trip each time.",
        {"choices": ("auto", "always")},
    ),
    Key(
        "pool.initial-sql",
        "string",
        None,
        "SQL that each new connection of the pool runs first, and again once its session was reset. "
        "Recovery's connections do not run it.",
    ),
    Key(
        "managed.commit",
        "choice",
        "refuse",
        "What commit() and rollback() of a connection do inside a transaction. join is for SQLAlchemy and pandas.",
        {"choices": ("refuse", "join")},
    ),
    Key(
        "transaction.required",
        "choice",
        "off",
        "What becomes of a statement outside any transaction. off allows it, warn names its line, strict refuses it.",
        {"choices": ("off", "warn", "strict")},
    ),
    Key(
        "transaction.isolation",
        "choice",
        None,
        "The isolation level of each local transaction, where the transaction asks for none. Without this "
        "key, the database's own. SQLite has serializable only.",
        {"choices": LEVELS},
    ),
    Key(
        "transaction.read-only",
        "boolean",
        "false",
        "Each local transaction is read-only, where the transaction asks for nothing else. The database "
        "refuses to write.",
    ),
    Key("cmr.table", "identifier", "xids", "The table of marks."),
    Key("cmr.immediate-cleanup", "boolean", "false", "Each mark is deleted at once, and not in batches."),
    Key("cmr.batch-size", "integer", "100", "How many marks one batch deletes.", {"min": 1}),
    Key(
        "xa.evidence",
        "choice",
        "server",
        "How it shows what has become of a branch that is gone: by what the server knows, or by a row of the branch.",
        {"choices": ("server", "row")},
    ),
    Key("xa.evidence.table", "identifier", "txpool_branches", "The table of the branches' rows."),
    Key(
        "prepared.owners",
        "names",
        None,
        "Further roles whose prepared branches are ours. The login role is one of ours anyway, and so is "
        "each role that it is a member of.",
        {"pattern": r"[^,\s][^,]*", "right": "names of roles"},
    ),
    Key(
        "recovery.user",
        "string",
        None,
        "The user that recovery logs in as, where it is another one: a superuser, or a member of the user.",
    ),
    Key("recovery.password", "secret", None, "The password of recovery's user."),
)

COORDINATOR_KEYS = (
    Key("node.name", "string", None, "The stable name of this coordinator. No two coordinators share a name.", _NODE),
    Key(
        "log.url",
        "url",
        None,
        "The decision log: sqlite:///folder, postgresql://host/database, mysql://host/database, or memory: in tests.",
    ),
    Key("log.user", "string", None, "The user of a log on a server. Leave it out where the url names one."),
    Key(
        "log.password",
        "secret",
        None,
        "The password of the log's user, best as a reference: ${env:NAME} or ${file:PATH}.",
    ),
    Key("log.create", "boolean", "false", "A log that is missing is created. Leave it false once the log exists."),
    Key("transaction.timeout", "duration", "none", "The timeout of a transaction that names none.", _NONE | _POSITIVE),
    Key(
        "transaction.leak-threshold",
        "duration",
        "none",
        "A transaction that is open for longer is reported, with what it holds and the line that began it.",
        _NONE | _POSITIVE,
    ),
    Key(
        "transaction.phase-two-wait",
        "duration",
        "60",
        "How long a call waits, after the decision, for a database that hangs. Recovery ends what has not answered.",
        _NONE | _POSITIVE,
    ),
    Key(
        "transaction.wait-report",
        "duration",
        "10",
        "A statement that executes for longer is looked into: whether it waits for a lock that a prepared branch of "
        "txpool's holds. That is reported.",
        _NONE | _POSITIVE,
    ),
    Key(
        "control.folder",
        "directory",
        None,
        "A folder in which each process has a socket for the command `txpool pool`. Without this key, there "
        "are no sockets.",
    ),
    Key("datasources", "paths", None, "The datasources' files, with commas between them."),
)

RECOVERY_KEYS = (
    Key(
        "recovery.nodes",
        "names",
        None,
        "The nodes to recover, or * for all nodes of the log. Without this key, the own node.",
        _NODES,
    ),
    Key("recovery.period", "duration", "120", "The time from the end of one scan to the next scan.", _POSITIVE),
    Key("recovery.backoff", "duration", "10", "The time between the two passes of a scan."),
    Key("recovery.lock-timeout", "duration", "5s", "The longest wait for a lock on a mark.", _POSITIVE),
    Key(
        "recovery.step-timeout",
        "duration",
        "30s",
        "How long a datasource has to answer each step of a pass. One that has not answered by then holds up no other.",
        _POSITIVE,
    ),
    Key(
        "recovery.overdue-rollback",
        "duration",
        "none",
        "A transaction that a living process has left prepared for this long beyond the largest timeout of its "
        "transactions is rolled back, unless it is decided. none: there is only the alarm.",
        _NONE | _POSITIVE,
    ),
    Key(
        "recovery.orphan-filters",
        "names",
        "node, subordinate",
        "Filters that vote on orphans: their names, or package.module.Class. The filters transaction-log and "
        "incarnation always vote beside them.",
        _CLASSES,
    ),
    Key(
        "recovery.noted",
        "logins",
        None,
        "The logins by which recovery may reach datasources that were made in code, as the log notes them: "
        "postgresql://user:${env:NAME}@host:port/database, or /* for any database there. Without this key, none.",
    ),
    Key(
        "recovery.modules",
        "names",
        None,
        "Modules of your own that each pass runs after its own: package.module:function, which makes one.",
        _FACTORIES,
    ),
    Key(
        "recovery.expiry.interval",
        "duration",
        "12h",
        "A record that has been of no use for this time moves to `list --expired`. none and 0 mean never.",
        _NONE,
    ),
    Key("recovery.expiry.skip-first", "boolean", "false", "Nothing expires until one interval after the start."),
    Key(
        "recovery.expiry.scanners",
        "names",
        "incarnation, heuristic, assumed-complete",
        "Scanners that choose what expires: their names, or package.module.Class. A decision never expires.",
        _CLASSES,
    ),
    Key("status.address", "address", None, "The address of the daemon's status page, such as 127.0.0.1:9464."),
    Key(
        "status.token",
        "secret",
        None,
        "The token that a request for a scan needs. Beyond loopback, every request needs it.",
    ),
    Key(
        "status.public",
        "names",
        None,
        "Those of healthz and metrics that need no token beyond loopback, with commas between them.",
        _PUBLIC,
    ),
    Key("alarm.in-doubt", "duration", "1h", "An alarm is raised for what is in doubt for longer.", _NONE | _POSITIVE),
    Key(
        "alarm.slots",
        "share",
        "0.8",
        "An alarm is raised where this share of a server's slots for prepared transactions is taken.",
        _NONE,
    ),
)

#: Every key, and whose file it belongs in.
WHOSE = {key.name: "the coordinator's file, such as conf/txpool.properties" for key in COORDINATOR_KEYS}
WHOSE |= {key.name: "recovery's file, such as conf/recovery.properties" for key in RECOVERY_KEYS}
WHOSE |= {key.name: "a datasource's file, such as conf/orders.properties" for key in DATASOURCE_KEYS}


def reference(keys: Iterable[Key]) -> str:
    """A table of keys in Markdown."""
    rows = [f"| `{key.name}` | {key.type} | {f'`{key.default}`' if key.default else ''} | {key.doc} |" for key in keys]
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows])
