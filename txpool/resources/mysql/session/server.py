"""What a session asks its server first: version, identity, and whether branches are safe there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from txpool.errors import ConfigurationError
from txpool.resources.mysql.session.pooler import SESSION, is_greeted
from txpool.resources.mysql.session.protocol import Session

#: The table with MariaDB's identity: @@server_uid is the same for a new data directory on the same host and port.
IDENTITY_TABLE: Final = "txpool.server"
READ_IDENTITY: Final = f"select identity from {IDENTITY_TABLE} where one = 1"
CREATE_IDENTITY: Final = (
    "create database if not exists txpool",
    f"create table if not exists {IDENTITY_TABLE} (one int primary key, identity char(24) not null) engine=innodb",
)
#: A process adds a token when it first connects, and its records carry it. A server that is restored from a backup does
#: not have the tokens that were added later: nothing is proven by what is absent there.
GENERATIONS_TABLE: Final = "txpool.generations"
CREATE_GENERATIONS: Final = (
    "create database if not exists txpool",
    f"create table if not exists {GENERATIONS_TABLE} (number bigint auto_increment primary key, "
    "token char(24) not null unique) engine=innodb",
)
#: How many tokens are kept. If an older one is asked for, nothing is proven.
_GENERATIONS: Final = 100_000
_FACTS: Final = (
    f"select @@version, @@server_id, @@log_bin, {SESSION}, concat_ws(' ', @@hostname, @@port, @@datadir), "
    "@@session.wait_timeout, @@session.max_allowed_packet"
)
_MARIADB_FACTS: Final = "select @@wsrep_on"
_MYSQL_FACTS: Final = "select @@server_uuid"
_CLUSTER: Final = (
    "select variable_value from information_schema.global_status where variable_name = 'wsrep_cluster_state_uuid'"
)

#: The first versions in which a prepared branch outlives its session, and is durable.
OLDEST_MARIADB: Final = (10, 5)
OLDEST_MYSQL: Final = (8, 0)
#: Before this MySQL, XA PREPARE is not durable if the server writes the binary log.
MYSQL_WITH_BINARY_LOG: Final = (8, 0, 30)


@dataclass(frozen=True, slots=True)
class Server:
    """The facts about a server that branches depend on."""

    mariadb: bool
    version: tuple[int, ...]
    binary_log: bool
    galera: bool
    #: Empty if the role may not read it.
    identity: str
    #: Which server it is: those of a cluster have one identity.
    node: str
    #: The session's wait_timeout, in seconds.
    wait_timeout: int
    #: How many bytes a statement may have.
    longest: int
    #: Whether this session is the one that has greeted the client: no pooler is in between, as far as the driver tells.
    direct: bool

    @property
    def product(self) -> str:
        return f"{'MariaDB' if self.mariadb else 'MySQL'} {'.'.join(map(str, self.version))}"

    def why_not_xa(self) -> str:
        """Why no branch can be trusted to this server; empty if it can."""
        oldest = OLDEST_MARIADB if self.mariadb else OLDEST_MYSQL
        if self.version < oldest:
            return (
                f"{self.product} is too old for mode = xa: it loses what a session has prepared when that ends. "
                f"Upgrade to {'MariaDB 10.6' if self.mariadb else 'MySQL 8'}, or write mode = cmr"
            )
        if self.galera:
            return (
                "the server is a node of a Galera cluster (wsrep_on = ON), which does not support XA: write mode = cmr"
            )
        if not self.mariadb and self.binary_log and self.version < MYSQL_WITH_BINARY_LOG:
            return (
                f"{self.product} writes the binary log (log_bin = ON), and then XA PREPARE is not durable before "
                "8.0.30: a crash can lose a branch that was decided to commit. Upgrade, start the server with "
                "skip-log-bin, or write mode = cmr"
            )
        return ""


def ask(session: Session, *ahead: str, until: float | None = None) -> Server:
    """Ask for the facts, in one message, with these statements ahead of them. Raises the server's error."""
    is_mariadb: bool = session.raw.is_mariadb
    session.send(*ahead, _FACTS, _MARIADB_FACTS if is_mariadb else _MYSQL_FACTS, READ_IDENTITY)
    *answers, identity = session.receive(until)
    facts, of_product = answers[-2:]
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    (version, server_id, binary_log, number, node, silent, longest), (own,) = facts.rows[0], of_product.rows[0]
    if is_mariadb:
        row = "" if identity.error is not None else str(identity.rows[0][0]) if identity.rows else ""
    else:
        row = str(own)
    galera = is_mariadb and str(own) in ("1", "ON")
    if galera:  # its nodes have different numbers, and one database
        session.send(_CLUSTER)
        (cluster,) = session.receive(until)
        if cluster.error is not None:
            raise cluster.error
        uuid = str(cluster.rows[0][0]) if cluster.rows else ""
        if uuid.strip("0-"):  # a server that is in no cluster now has none
            server_id = uuid
    return Server(
        mariadb=is_mariadb,
        version=version_of(str(version)),
        binary_log=str(binary_log) in ("1", "ON"),
        galera=galera,
        # A replica has the row, too, and another number: what was prepared on the one may not be on the other.
        identity=f"{row}/{server_id}" if row else "",
        node=f"{node} {server_id}",
        wait_timeout=int(silent),
        longest=int(longest),
        direct=session.raw.session_number is None or is_greeted(session.raw.session_number, int(number)),
    )


def assign_identity(session: Session, until: float | None = None) -> bool:
    """Give MariaDB an identity if it has none, outside a transaction; whether that was allowed."""
    insert = f"insert ignore into {IDENTITY_TABLE} values (1, '{secrets.token_hex(12)}')"
    session.send(*_writing(*CREATE_IDENTITY, insert))
    return all(answer.error is None for answer in session.receive(until))


def has_generation(session: Session, token: str, until: float | None = None) -> bool:
    """Whether this is, for all that is known, the server that the token was added to."""
    if not token:
        return False
    session.send(f"select 1 from {GENERATIONS_TABLE} where token = {session.quoted(token)}")
    (answer,) = session.receive(until)
    return answer.error is None and bool(answer.rows)


def add_generation(session: Session, until: float | None = None) -> str:
    """Add a token, outside a transaction; empty if that is not allowed."""
    token = secrets.token_hex(12)
    for create in ((), CREATE_GENERATIONS):
        session.send(*_writing(*create, *_add(token)))
        *_, added, _, _ = session.receive(until)
        if added.error is None:
            return token
    return ""


def may_add_generation(session: Session) -> bool:
    """Whether a token may be read, added and deleted; leaves nothing behind."""
    return refusal_of_generation(session) is None


def refusal_of_generation(session: Session) -> Exception | None:
    """The server's error if a token may not be read, added and deleted; leaves nothing behind."""
    look = f"select 1 from {GENERATIONS_TABLE} where token = ''"
    session.send("start transaction read write", *_add("probe"), look, "rollback")
    return next((answer.error for answer in session.receive() if answer.error is not None), None)


def refusal_of_identity(session: Session) -> Exception | None:
    """The server's error if MariaDB's identity may not be read; None if there is none yet, too."""
    session.send(READ_IDENTITY)
    (answer,) = session.receive()
    return answer.error


def may_read_generations(session: Session) -> bool:
    """Whether a token may be looked for."""
    session.send(f"select 1 from {GENERATIONS_TABLE} where token = ''")
    return all(answer.error is None for answer in session.receive())


def _writing(*statements: str) -> Iterator[str]:
    """The statements, each as one that may write: the session's transactions may be read-only by default."""
    for statement in statements:
        yield from ("set transaction read write", statement)


def _add(token: str) -> tuple[str, str]:
    return (
        f"insert into {GENERATIONS_TABLE} (token) values ('{token}')",
        f"delete from {GENERATIONS_TABLE} where number + {_GENERATIONS} <= last_insert_id()",
    )


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, such as 10.11.19-MariaDB; `5.5.5-` may be before those of an old MariaDB."""
    found = re.match(r"(?:5\.5\.5-(?=1))?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise ConfigurationError(f"a server of version {text!r} is neither MariaDB nor MySQL")
    return tuple(int(number) for number in found.groups() if number is not None)
