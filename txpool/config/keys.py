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
_FUNCTION = {"pattern": FUNCTION, "right": "a module and its function, package.module:function"}
_NONE = {"none": True}
_POSITIVE = {"positive": True}

DATASOURCE_KEYS = (
    Key("name", "string", None, "The datasource's name; without it, the file's own without .properties.", _NAME),
    Key("driver", "choice", None, "The DB-API driver.", {"choices": DRIVERS}),
    Key("mode", "choice", "xa", "How it takes part in a transaction.", {"choices": MODES}),
    Key("url", "url", None, "postgresql://user@host:port/database, or sqlite:///file.", alias="URL"),
    Key("user", "string", None, "The user, where the url does not name one.", alias="User"),
    Key("password", "secret", None, "The password, best as ${env:NAME} or ${file:PATH}.", alias="Password"),
    Key(
        "credentials",
        "string",
        None,
        "package.module:function, called before each connection is opened: it returns a password, or (user, password).",
        _FUNCTION,
    ),
    Key(
        "pool.enabled",
        "boolean",
        "true",
        "false, behind PgBouncer: each connect() opens a connection, and close() closes it.",
    ),
    Key("pool.min-size", "integer", "0", "Connections that are kept open.", {"min": 0}),
    Key("pool.max-size", "integer", "10", "Connections at most.", {"min": 1}),
    Key("pool.max-wait", "duration", "30", "The longest wait for a connection: a free one, its check, a new one."),
    Key("pool.idle-timeout", "duration", "10m", "An idle connection above min-size is closed after it.", _NONE),
    Key("pool.max-lifetime", "duration", "30m", "A connection is replaced after it, less up to 2.5 %.", _NONE),
    Key(
        "pool.keepalive",
        "duration",
        "none",
        "A connection that has been idle for so long, less up to 2.5 %, is asked whether it is alive; again and again.",
        _NONE | _POSITIVE,
    ),
    Key("pool.check-bypass", "duration", "500ms", "A connection used within it is not checked when taken."),
    Key(
        "pool.check-timeout",
        "duration",
        "5s",
        "A connection that does not answer its check when taken, or its reset when given back, within it is dropped.",
        _POSITIVE,
    ),
    Key("pool.leak-threshold", "duration", "none", "A connection held for longer is reported, with its stack.", _NONE),
    Key(
        "pool.reset",
        "choice",
        "auto",
        "What is cleaned of a session at give-back: auto, what each statement's text and command tag show to leave "
        "behind (nothing that is within a function of the database's own); always, all of it, for a round trip each "
        "time.",
        {"choices": ("auto", "always")},
    ),
    Key(
        "pool.initial-sql",
        "string",
        None,
        "SQL that each new connection runs once, and again once its session was reset; recovery's own do not.",
    ),
    Key(
        "managed.commit",
        "choice",
        "refuse",
        "What commit() and rollback() do inside a transaction; join is for SQLAlchemy and pandas.",
        {"choices": ("refuse", "join")},
    ),
    Key(
        "transaction.required",
        "choice",
        "off",
        "What becomes of a statement outside any transaction: allowed, warned of with the caller's line, or refused.",
        {"choices": ("off", "warn", "strict")},
    ),
    Key(
        "transaction.isolation",
        "choice",
        None,
        "How each local transaction begins, where a transaction asks for nothing else; without it as the database has "
        "it. SQLite has serializable only.",
        {"choices": LEVELS},
    ),
    Key(
        "transaction.read-only",
        "boolean",
        "false",
        "Each local transaction begins read-only, where a transaction asks for nothing else: the database refuses "
        "to write.",
    ),
    Key("cmr.table", "identifier", "xids", "The table of marks."),
    Key("cmr.immediate-cleanup", "boolean", "false", "Delete a mark at once rather than in batches."),
    Key("cmr.batch-size", "integer", "100", "Marks that one batch deletes.", {"min": 1}),
    Key(
        "prepared.owners",
        "names",
        None,
        "Further roles whose prepared branches are ours: others than the login and what it is a member of.",
        {"pattern": r"[^,\s][^,]*", "right": "names of roles"},
    ),
    Key(
        "recovery.user",
        "string",
        None,
        "The user of recovery, where it is another: a superuser, or a member of the user.",
    ),
    Key("recovery.password", "secret", None, "The password of recovery's user."),
)

COORDINATOR_KEYS = (
    Key("node.name", "string", None, "The stable name of this coordinator; no two may share it.", _NODE),
    Key("log.url", "url", None, "The decision log: sqlite:///folder, postgresql://host/database, or memory: in tests."),
    Key("log.user", "string", None, "The user of a log on a server, where the url does not name one."),
    Key("log.password", "secret", None, "The password of the log's user, best as ${env:NAME} or ${file:PATH}."),
    Key("log.create", "boolean", "false", "Create a log that is missing; leave false once it exists."),
    Key("transaction.timeout", "duration", "none", "Time for a transaction that names none.", _NONE | _POSITIVE),
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
        "Once it is decided: how long to wait for a database that hangs; what has not answered is left to recovery.",
        _NONE | _POSITIVE,
    ),
    Key(
        "control.folder",
        "directory",
        None,
        "A folder in which each process has a socket for the command `txpool pool`; without it there is none.",
    ),
    Key("datasources", "paths", None, "The datasources' files, with commas between them."),
)

RECOVERY_KEYS = (
    Key("recovery.nodes", "names", None, "The nodes to recover: the own, or these, or * for all of the log's.", _NODES),
    Key("recovery.period", "duration", "120", "From the end of one pass to the next.", _POSITIVE),
    Key("recovery.backoff", "duration", "10", "Between the two scans of a pass."),
    Key("recovery.lock-timeout", "duration", "5s", "Longest wait for a lock on a mark.", _POSITIVE),
    Key(
        "recovery.orphan-filters",
        "names",
        "node, subordinate",
        "Who votes on orphans beside transaction-log and incarnation, which always do; or package.module.Class.",
        _CLASSES,
    ),
    Key(
        "recovery.expiry.interval",
        "duration",
        "12h",
        "What has been of no use for so long is moved out of sight; none or 0 is never.",
        _NONE,
    ),
    Key("recovery.expiry.skip-first", "boolean", "false", "Expire nothing until one interval after the start."),
    Key(
        "recovery.expiry.scanners",
        "names",
        "incarnation, heuristic, assumed-complete",
        "Who chooses what expires, which a decision never does; or package.module.Class.",
        _CLASSES,
    ),
    Key("status.address", "address", None, "Where the daemon serves its status page, such as 127.0.0.1:9464."),
    Key("status.token", "secret", None, "What asking for a scan takes; beyond loopback, what every request takes."),
    Key("alarm.in-doubt", "duration", "1h", "What is in doubt for longer raises an alarm.", _NONE | _POSITIVE),
    Key("alarm.slots", "share", "0.8", "A share of prepared-transaction slots; what takes it raises an alarm.", _NONE),
)

#: Every key, and whose file it belongs in.
WHOSE = {key.name: "the coordinator's file, such as conf/txpool.properties" for key in COORDINATOR_KEYS}
WHOSE |= {key.name: "recovery's file, such as conf/recovery.properties" for key in RECOVERY_KEYS}
WHOSE |= {key.name: "a datasource's file, such as conf/orders.properties" for key in DATASOURCE_KEYS}


def reference(keys: Iterable[Key]) -> str:
    """A table of keys in Markdown."""
    rows = [f"| `{key.name}` | {key.type} | {f'`{key.default}`' if key.default else ''} | {key.doc} |" for key in keys]
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows])
