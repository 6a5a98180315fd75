"""A PostgreSQL server and its synchronous standby, which is promoted when the server is lost."""

from __future__ import annotations

import atexit
from typing import Any, Self

import psycopg

from tests.support.waiting import until
from txpool.demo.server import EmbeddedPostgres, _binaries, free_port

_NAME = "log_standby"


class Standby(EmbeddedPostgres):
    """A standby of a server, in a folder of its own. `port` is where it listens, a free one if it is 0."""

    ready_line = "database system is ready to accept"  # read-only connections, or any

    def __init__(self, primary: EmbeddedPostgres, *, port: int = 0) -> None:
        super().__init__(settings=primary.settings)
        self.password = primary.password
        self._primary = primary
        self._wanted_port = port

    def start(self) -> None:
        if not self.port:
            atexit.register(self.close)
            self._initialise()
            self.port = self._wanted_port or free_port()
        if not self.running:
            self._launch()

    def _initialise(self) -> None:
        folder = self.folder = self._own_folder()
        self._binaries = _binaries(self._account, folder)
        self._data = folder / "data"
        source = f"{self._primary.dsn('postgres')} application_name={_NAME}"
        command: list[Any] = [self._binaries / "pg_basebackup", "-D", self._data, "-d", source, "-R", "-N"]
        made = self._account.run(*command, "-X", "stream", "-c", "fast")
        assert made.returncode == 0, made.stderr

    @property
    def receiver(self) -> int:
        """The process that receives what the primary has written, and confirms it."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            ((pid,),) = connection.execute("select pid from pg_stat_wal_receiver").fetchall()
        return int(pid)

    def promote(self) -> None:
        """Return once it is a primary. It has all that was confirmed before the other was lost."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            assert connection.execute("select pg_promote()").fetchone() == (True,)


class Replicated:
    """A server for databases of these names, and a standby that confirms each commit.

    The two have the same two ports for ever: a standby that is made anew takes that of the server that was lost.
    """

    def __init__(self, *databases: str) -> None:
        #: Only processes are killed here: what was written is there without a sync.
        self.primary: EmbeddedPostgres = EmbeddedPostgres(databases=databases, settings={"fsync": "off"})
        self.standby: Standby | None = None
        self.ports = (0, 0)

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self.standby = self._new_standby(0)
        except BaseException:
            self.close()
            raise
        self.ports = (self.primary.port, self.standby.port)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def url(self, database: str) -> str:
        """It names both servers."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://{self.primary.user}@{hosts}/{database}"

    def wait_for_unconfirmed(self) -> None:
        """Return once a commit waits for the standby, to which it was sent."""
        query = """select count(*) from pg_stat_activity, pg_stat_replication
            where wait_event = 'SyncRep' and sent_lsn >= pg_current_wal_insert_lsn()"""
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True) as connection:
            until(lambda: connection.execute(query).fetchone() == (1,), what="nobody waits for the standby")

    @property
    def port(self) -> int:
        return self.primary.port

    @property
    def password(self) -> str:
        return self.primary.password

    def dsn(self, database: str) -> str:
        """Of the primary."""
        return self.primary.dsn(database)

    def start(self) -> None:
        self.primary.start()

    def lose_primary(self) -> None:
        """It is lost with its disk."""
        self.primary.stop("immediate")
        self.primary.close()

    def promote(self) -> None:
        """The standby takes the place of a server that was lost. It has none of its own before `renew`."""
        assert self.standby is not None
        self.standby.promote()
        self.primary, self.standby = self.standby, None

    def renew(self) -> None:
        """Make a standby for a server that has none."""
        if self.standby is None:
            (lost,) = {*self.ports} - {self.primary.port}
            self.standby = self._new_standby(lost)

    def close(self) -> None:
        for server in filter(None, (self.standby, self.primary)):
            server.close()

    def _new_standby(self, port: int) -> Standby:
        standby = Standby(self.primary, port=port)
        standby.start()
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"alter system set synchronous_standby_names = 'FIRST 1 ({_NAME})'")
            connection.execute("select pg_reload_conf()")
            query = "select count(*) from pg_stat_replication where sync_state = 'sync'"
            until(lambda: connection.execute(query).fetchone() == (1,), what="no synchronous standby")
        return standby
