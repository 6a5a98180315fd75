"""The keys of a datasource's file."""

from __future__ import annotations

from txpool.config.keys.jdbc import JDBC_KEYS
from txpool.config.keys.key import NO_VALUE, POSITIVE, Key
from txpool.config.keys.lake import LAKE_KEYS
from txpool.config.keys.messages import MESSAGE_KEYS
from txpool.config.secrets import FUNCTION
from txpool.resource_managers import DRIVERS
from txpool.sql.characteristics import LEVELS

MODES = ("xa", "cmr", "last-resource", "local")
#: The brokers that a relay of txpool's delivers to.
BROKERS = ("kafka", "rabbitmq", "nats", "jms")
_NAME = {"pattern": r"[A-Za-z0-9_.-]{1,32}", "right": "1 to 32 of the characters A-Z a-z 0-9 _ . -"}
_FUNCTION = {"pattern": FUNCTION, "right": "a module and its function, package.module:function"}

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
    *JDBC_KEYS,
    Key("mode", "choice", "xa", "How it takes part in a transaction.", {"choices": MODES}),
    Key(
        "url",
        "url",
        None,
        "postgresql://user@host:port/database, mysql://… likewise, sqlite:///file, or jdbc:….",
        alias="URL",
    ),
    Key("user", "string", None, "The user. Leave it out if the url names one.", alias="User"),
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
    Key(
        "pool.idle-timeout", "duration", "10m", "An idle connection above min-size is closed after this time.", NO_VALUE
    ),
    Key(
        "pool.max-lifetime", "duration", "30m", "A connection is replaced after this time, less up to 2.5 %.", NO_VALUE
    ),
    Key(
        "pool.keepalive",
        "duration",
        "none",
        "A connection that has been idle for this time, less up to 2.5 %, is asked whether it is alive, "
        "again and again.",
        NO_VALUE | POSITIVE,
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
        POSITIVE,
    ),
    Key(
        "pool.leak-threshold",
        "duration",
        "none",
        "A connection that is held for longer is reported, with the stack of its taking.",
        NO_VALUE,
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
        "What commit() and rollback() of a connection do inside a transaction. join is for libraries that commit by "
        "themselves. The connections of create_engine() join without it.",
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
        "The isolation level of each local transaction, if the transaction asks for none. Without this "
        "key, the database's own. SQLite has serializable only.",
        {"choices": LEVELS},
    ),
    Key(
        "transaction.read-only",
        "boolean",
        "false",
        "Each local transaction is read-only, if the transaction asks for nothing else. The database refuses to write.",
    ),
    Key("cmr.table", "identifier", "xids", "The table of marks."),
    Key("cmr.immediate-cleanup", "boolean", "false", "Each mark is deleted at once, and not in batches."),
    Key("cmr.batch-size", "integer", "100", "How many marks one batch deletes.", {"min": 1}),
    Key(
        "outbox.deliver",
        "string",
        None,
        "kafka, rabbitmq, nats or jms: `txpool outbox run` delivers each message of the datasource's outbox to that "
        "broker. Or package.module:function, which it calls with each.",
        {"pattern": f"{FUNCTION}|{'|'.join(BROKERS)}", "right": f"{', '.join(BROKERS)}, or package.module:function"},
    ),
    Key("outbox.broker", "string", None, "The address of that broker, host:port, or several with commas between them."),
    Key(
        "outbox.to",
        "string",
        None,
        "Kafka's topic, NATS's subject, JMS's queue, or topic: and a topic of its; RabbitMQ's queue. With "
        "outbox.exchange it is RabbitMQ's routing key, and without one the message's key is that.",
    ),
    Key("outbox.exchange", "string", None, "An exchange of RabbitMQ."),
    Key("outbox.vhost", "string", "/", "RabbitMQ's virtual host."),
    Key("outbox.user", "string", None, "The user at that broker."),
    Key("outbox.password", "secret", None, "The password there, best as a reference: ${env:NAME} or ${file:PATH}."),
    Key("outbox.tls", "boolean", "false", "Whether that broker is reached by TLS. Its certificate is checked."),
    Key(
        "outbox.attempts",
        "integer",
        "10",
        "How often the delivery of a message may begin. One that has failed so often is parked.",
        {"min": 1},
    ),
    Key("outbox.poll", "duration", "1", "How long a relay waits before it looks again for messages.", POSITIVE),
    Key(
        "outbox.skip-parked",
        "boolean",
        "false",
        "true delivers the later messages of a parked message's key. Otherwise they wait for it.",
    ),
    Key(
        "once.keep",
        "duration",
        "none",
        "The row of a key of once() is deleted after this time. A message that comes again later is done again.",
        NO_VALUE | POSITIVE,
    ),
    *MESSAGE_KEYS,
    Key(
        "folder", "file", None, "The folder of driver = files or delta: what is published, or the tables, are below it."
    ),
    Key(
        "bucket.owner",
        "string",
        None,
        "With driver = s3 or iceberg: the account that owns the bucket. A bucket of another account is refused.",
        {"pattern": r"\d{12}", "right": "the twelve digits of an account"},
    ),
    Key(
        "staging",
        "file",
        None,
        "With driver = s3: a folder that every executor has under this path, where write_files() writes first.",
    ),
    *LAKE_KEYS,
    Key(
        "xa.evidence",
        "choice",
        "server",
        "How it shows what has become of a branch that is gone: by what the server knows, or by a row of the branch.",
        {"choices": ("server", "row")},
    ),
    Key("xa.evidence.table", "identifier", "txpool_branches", "The table of the branches' rows."),
    Key(
        "xa.phase-two-connections",
        "integer",
        "8",
        "Over how many connections, beside the pool's, a Spark driver's commit and recovery end prepared branches at "
        "most. All but the first are left out if the server refuses them. Over JDBC it is always one.",
        {"min": 1},
    ),
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
        "The user that recovery logs in as, if it is another one: a superuser, or a member of the user.",
    ),
    Key("recovery.password", "secret", None, "The password of recovery's user."),
)
