"""The keys of the coordinator's file, and those that recovery's file has besides."""

from __future__ import annotations

from txpool.config.keys.key import NO_VALUE, POSITIVE, Key
from txpool.config.secrets import FUNCTION

_NODE = {"pattern": r"[A-Za-z0-9_.-]{1,28}", "right": "1 to 28 of the characters A-Z a-z 0-9 _ . -"}
_NODES = {"pattern": rf"\*|{_NODE['pattern']}", "right": "* alone, or names of nodes"}
_CLASSES = {
    "pattern": r"[a-z][a-z-]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+",
    "right": "their names, or dotted paths of classes",
}
_PUBLIC = {"pattern": "healthz|metrics", "right": "healthz, metrics or both"}
_OUTBOXES = {"pattern": r"\*|[A-Za-z0-9_.-]{1,32}", "right": "* alone, none, or names of datasources"}
_FACTORIES = {"pattern": FUNCTION, "right": "modules and their functions, package.module:function"}

COORDINATOR_KEYS = (
    Key("node.name", "string", None, "The stable name of this coordinator. No two coordinators share a name.", _NODE),
    Key(
        "log.url",
        "url",
        None,
        "The decision log: sqlite:///folder, postgresql://host/database, mysql://host/database, or memory: in tests.",
    ),
    Key("log.user", "string", None, "The user of a log on a server. Leave it out if the url names one."),
    Key(
        "log.password",
        "secret",
        None,
        "The password of the log's user, best as a reference: ${env:NAME} or ${file:PATH}.",
    ),
    Key("log.create", "boolean", "false", "A log that is missing is created. Leave it false once the log exists."),
    Key(
        "transaction.timeout", "duration", "none", "The timeout of a transaction that names none.", NO_VALUE | POSITIVE
    ),
    Key(
        "transaction.leak-threshold",
        "duration",
        "none",
        "A transaction that is open for longer is reported, with what it holds and the line that began it.",
        NO_VALUE | POSITIVE,
    ),
    Key(
        "transaction.phase-two-wait",
        "duration",
        "60",
        "How long a call waits, after the decision, for a database that hangs. Recovery ends what has not answered.",
        NO_VALUE | POSITIVE,
    ),
    Key(
        "transaction.wait-report",
        "duration",
        "10",
        "A statement, a COMMIT too, that executes for longer is looked into: whether it waits for a lock that a "
        "prepared branch of txpool's holds, or other work of this process. That is reported.",
        NO_VALUE | POSITIVE,
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
    Key("recovery.period", "duration", "120", "The time from the end of one scan to the next scan.", POSITIVE),
    Key("recovery.backoff", "duration", "10", "The time between the two passes of a scan."),
    Key("recovery.lock-timeout", "duration", "5s", "The longest wait for a lock on a mark.", POSITIVE),
    Key(
        "recovery.step-timeout",
        "duration",
        "30s",
        "How long a datasource has to answer each step of a pass. One that has not answered by then holds up no other.",
        POSITIVE,
    ),
    Key(
        "recovery.overdue-rollback",
        "duration",
        "none",
        "A transaction that a living process has left prepared for this long beyond the largest timeout of its "
        "transactions is rolled back, unless it is decided. none: there is only the alarm.",
        NO_VALUE | POSITIVE,
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
        "recovery.outboxes",
        "names",
        "*",
        "The datasources whose outboxes are shown, and sessions whose parked messages are, with commas between them. "
        "*: those whose files have outbox.deliver, and sessions that receive. none: nothing is looked into.",
        _OUTBOXES,
    ),
    Key(
        "recovery.expiry.interval",
        "duration",
        "12h",
        "A record that has been of no use for this time moves to `list --expired`. none and 0 mean never.",
        NO_VALUE,
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
    Key("alarm.in-doubt", "duration", "1h", "An alarm is raised for what is in doubt for longer.", NO_VALUE | POSITIVE),
    Key(
        "alarm.slots",
        "share",
        "0.8",
        "An alarm is raised if this share of a server's slots for prepared transactions is taken.",
        NO_VALUE,
    ),
)
