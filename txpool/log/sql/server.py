"""The server of a sql log: its connections, its tables, its leases, and the check that it is the original log.

Every connection is verified when it is opened. A url that leads to another server today, or to a copy, would find no
decision, and so roll back what is committed. What is the database's own is in its folder, which its resource manager
names.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, TypeVarTuple

from txpool.config.secrets import ConfiguredValue, Secret, ValueSource, escaped, redact
from txpool.errors import ConfigurationError, LogError, described
from txpool.findings.finding import Finding
from txpool.log.formats import FORMAT, require
from txpool.log.sql.statements import Script, Statements
from txpool.resource_managers import of_url

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Of one statement or script, by their names.
Parameters = Mapping[str, object]


class LogServer(ABC):
    """Opens verified connections, each statement durable by itself; a Connector for the pool. Thread-safe.

    A raw connection has a `session`, which tells without waiting whether it `is_alive()`.
    """

    statements: ClassVar[Statements]
    #: The errors of the database's driver.
    errors: tuple[type[Exception], ...]

    def __init__(
        self, url: str, *, user: str | None = None, password: Secret | None = None, lock_timeout: float = 10.0
    ) -> None:
        entry = ConfiguredValue("log.url", escaped(url), "the decision log", Path.cwd(), ValueSource.CODE)
        read = entry.url()
        #: It shows no password.
        self.url = read.without
        self._user = user
        self._password = password or (Secret(entry, in_url=True) if read.password is not None else None)
        self._lock_timeout = lock_timeout
        #: Its name in errors.
        self.name = f"the decision log {self.url}"

    def connect(self, application: str = "txpool log", *, timeout: float | None = None) -> Any:
        """A verified connection. Errors: LogError if the log is missing, another or not durable; the driver's."""
        raw = self.open_raw(application, timeout)
        try:
            self._verify(raw)
        except BaseException:
            self.close(raw)
            raise
        return self.opened(raw)

    def adopt(self) -> None:
        """Accept a copied or moved log as this server's own; LogError while any incarnation holds its lease.

        The earlier incarnations of all nodes are forgotten, so that recovery leaves their branches alone. Their
        decisions stay for people to read, and so do the location notes.
        """
        raw = self.open_raw("txpool log", None)
        try:
            self._require_tables(raw)
            server = self.identity(raw)
            with self.holding_registry(raw):
                held = self.execute(raw, self.statements.in_use)
                if held:
                    names = ", ".join(name for (name,) in held)
                    raise LogError(
                        f"{self.name} is in use by incarnation {names}: nothing done. End that process first"
                    )
                self._meta(raw)
                self.add_tables(raw)
                self.execute(raw, ("DELETE FROM txpool_incarnations",))
                self.execute(raw, ("DELETE FROM txpool_memos WHERE kind = 'incarnation' OR kind = 'timeout'",))
                self.execute(raw, ("DELETE FROM txpool_expired",))
                self.execute(raw, ("DELETE FROM txpool_finished",))
                self.set_meta(raw, {"log": secrets.token_hex(16), "server": server})
        finally:
            self.close(raw)

    def describe(self, error: BaseException) -> str:
        """The text of an error, on one line and without a secret."""
        return " ".join(redact(described(error), [self._password]).split())

    def set_meta(self, raw: RawConnection, meta: Mapping[str, str]) -> None:
        for name, value in meta.items():
            self.execute(raw, self.statements.set_meta, {"name": name, "value": value})

    def new_meta(self, server: str) -> dict[str, str]:
        """What the meta table of a new log has."""
        return {"format": FORMAT, "log": secrets.token_hex(16), "server": server}

    def _verify(self, raw: RawConnection) -> None:
        self._require_tables(raw)
        meta = self._meta(raw)
        found = self.identity(raw)
        if not self.has_added_tables(raw):
            raise LogError(f"{self.name} was made by an earlier txpool: `txpool-recovery init` adds what it lacks")
        # If the role may not see the server's identity, there is nothing to compare.
        if found and meta["server"] and found != meta["server"]:
            raise LogError(
                f"{self.name} is a copy or was moved: it was made on server {meta['server']}, and this one is {found}. "
                f"Two copies in use would end transactions both ways. Once the other is not in use any more, "
                f"`txpool-recovery init --adopt` accepts this one, and leaves all earlier branches alone"
            )

    def _meta(self, raw: RawConnection) -> dict[str, str]:
        meta: dict[str, str] = dict(self.execute(raw, ("SELECT name, value FROM txpool_meta",)))
        require(meta.get("format"), self.name)
        return meta

    def _require_tables(self, raw: RawConnection) -> None:
        if not self.exists(raw):
            raise LogError(
                f"{self.name} is missing: its tables are not {self.place} there. Empty ones would roll back what "
                f"is committed, so they are made only by `txpool-recovery init`, or with log.create = true"
            )
        self.require_ours(raw)

    # -- connections --------------------------------------------------------------------------------------------

    @abstractmethod
    def open_raw(self, application: str, timeout: float | None) -> Any:
        """A connection whose session is as the log needs it; its steps wait until `timeout`. The driver's errors."""

    def opened(self, raw: RawConnection) -> Any:
        """The verified connection, ready for use."""
        return raw

    @abstractmethod
    def is_clean(self, raw: RawConnection) -> bool: ...

    @abstractmethod
    def reset(self, raw: RawConnection, timeout: float | None = None) -> None: ...

    @abstractmethod
    def ping(self, raw: RawConnection, timeout: float | None = None) -> None: ...

    @abstractmethod
    def close(self, raw: RawConnection) -> None: ...

    @abstractmethod
    def disown(self, raw: RawConnection) -> None:
        """In a forked child: close this copy of the socket, or the server would not notice the parent's death."""

    # -- statements ---------------------------------------------------------------------------------------------

    def do(self, work: Callable[[Any, *Ts], T], raw: RawConnection, *arguments: *Ts) -> T:
        """Do work that is one statement or one transaction: again if all of it has given in to another one."""
        return work(raw, *arguments)

    @abstractmethod
    def run(self, raw: RawConnection, script: Script, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Execute a script outside a transaction, durable when this returns."""

    @abstractmethod
    def execute(
        self, raw: RawConnection, script: Script, parameters: Parameters | None = None
    ) -> list[tuple[Any, ...]]:
        """Execute a script inside a transaction, or a single statement."""

    @abstractmethod
    def transaction(self, raw: RawConnection) -> AbstractContextManager[object]:
        """A transaction around the block."""

    @abstractmethod
    def holding_registry(self, raw: RawConnection) -> AbstractContextManager[object]:
        """A transaction around the block, in which nobody registers an incarnation."""

    @abstractmethod
    def insert(self, raw: RawConnection, gtrid: str, incarnation: str, branches: str) -> bool:
        """Whether the decision was written, without branches the key alone.

        Not if the incarnation is fenced or unknown, or the key is taken, or the server would not make it durable. It
        waits for a fence of the incarnation, or another row of the key, that is on its way, and holds back later ones.
        """

    def why_not_durable(self, raw: RawConnection) -> str:
        """Why nothing that is written now would outlive a crash; empty if it would, as far as a session can tell."""
        return ""

    @abstractmethod
    def is_definite(self, error: Exception) -> bool:
        """Whether the server has answered, and nothing was written."""

    # -- leases -------------------------------------------------------------------------------------------------

    @abstractmethod
    def take_lease(self, raw: RawConnection, incarnation: str) -> dict[str, object] | None:
        """Take an incarnation's lease, for as long as the session lasts: what the registry says of it.

        None if another session has it.
        """

    @abstractmethod
    def release_lease(self, raw: RawConnection) -> None: ...

    # -- tables -------------------------------------------------------------------------------------------------

    #: Where its tables are looked for.
    place: ClassVar[str]

    @abstractmethod
    def create(self) -> bool:
        """Create the tables, and return True; False if they exist.

        Of two processes that do so at once, the second finds them.
        """

    @abstractmethod
    def exists(self, raw: RawConnection) -> bool: ...

    def has_added_tables(self, raw: RawConnection) -> bool:
        """Whether it has the tables that later versions have added."""
        return True

    def add_tables(self, raw: RawConnection) -> None:  # noqa: B027 - most have had them from the beginning
        """Add the tables that later versions have."""

    @abstractmethod
    def require_ours(self, raw: RawConnection) -> None:
        """LogError if what others have made, or hung on it, would be taken for the log."""

    @abstractmethod
    def identity(self, raw: RawConnection) -> str:
        """The identity of server and database; empty if it may not be read."""

    @abstractmethod
    def findings(self) -> Iterator[Finding]:
        """The findings of `txpool check`. NotConnected, and LogError if no log is to be used there."""


def log_server(url: str, **options: Any) -> LogServer:
    """The server that a log's url names."""
    manager = of_url(url)
    if manager is None or manager.log is None:
        raise ConfigurationError("log.url names no database that can hold a decision log")
    server: type[LogServer] = resolve_name(manager.log.server)
    return server(url, **options)


def is_log_url(url: str) -> bool:
    """Whether a url names a log on a server."""
    manager = of_url(url)
    return manager is not None and manager.log is not None and url.startswith(manager.log.schemes)
