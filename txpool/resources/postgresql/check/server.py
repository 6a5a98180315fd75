"""The facts and settings of a PostgreSQL server that findings are about, and how its settings are changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from txpool.resources.postgresql.check.connecting import quoted
from txpool.resources.postgresql.qualified import qualified

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

_SETTINGS: LiteralString = qualified(
    """
    select name, setting, source from pg_settings where name = any (array[
        'max_prepared_transactions', 'max_connections', 'superuser_reserved_connections', 'reserved_connections',
        'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'default_transaction_read_only',
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'])
"""
)
_FACTS: LiteralString = qualified(
    """
    select session_user, current_database(), pg_is_in_recovery(), pg_backend_pid(), rolsuper, rolconnlimit,
        (select datconnlimit from pg_database where datname = current_database()),
        (select count(*) from pg_stat_get_wal_senders() sender where sender.state is null or sender.state <> 'backup'),
        has_function_privilege('pg_catalog.pg_control_system()'::text, 'execute'),
        exists (select from pg_proc where proname = 'pg_xact_status'
            and pronamespace = 'pg_catalog'::regnamespace::oid and has_function_privilege(oid, 'execute'))
    from pg_roles where rolname = session_user
"""
)
_CLOCK: LiteralString = qualified("select extract(epoch from clock_timestamp())::float8")
# Executed once the configured values have been read, and never on a session that a pooler shares.
_NO_TIMEOUTS: LiteralString = "set statement_timeout = 0; set lock_timeout = '2s'"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as a new session has it; `source` is pg_settings' word for where the value comes from."""

    name: str
    value: str
    source: str

    @property
    def milliseconds(self) -> int:
        """The value of a timeout; 0 is no timeout."""
        return int(self.value)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server, and the session's role there."""

    version: int  #: 180002 is 18.2
    user: str
    database: str
    standby: bool
    superuser: bool
    #: Whether a connection pooler is between this process and the server.
    pooled: bool
    #: How many connections the role may have in the database.
    connections: int
    #: How many standbys stream from the server now.
    standbys: int
    #: Whether the role may read the server's system identifier.
    identity_readable: bool
    #: Whether the role may ask what became of a transaction.
    status_readable: bool
    #: How far the server's clock is ahead of this machine's, in seconds.
    clock_ahead: float
    settings: dict[str, Setting]

    @property
    def release(self) -> str:
        """The version as PostgreSQL writes it: 18.2."""
        return f"{self.version // 10000}.{self.version % 10000}"

    def reset(self, name: str, wanted: str) -> str:
        """How to give a setting the value `wanted`, which depends on where its value comes from."""
        user, database = quoted(self.user), quoted(self.database)
        source = self.settings[name].source
        ways = {
            "user": f"ALTER ROLE {user} RESET {name};",
            "database": f"ALTER DATABASE {database} RESET {name};",
            "database user": f"ALTER ROLE {user} IN DATABASE {database} RESET {name};",
            "global": f"ALTER ROLE ALL RESET {name};",
            "client": f"take {name} out of the url, driver.options or PGOPTIONS",
            "command line": f"start the server with -c {name}={wanted}",
        }
        return ways.get(source, f"ALTER SYSTEM SET {name} = '{wanted}'; SELECT pg_reload_conf();")


def server_facts(raw: PsycopgRawConnection) -> ServerFacts:
    """Read the facts over a fresh connection of the driver `psycopg`, which stays in autocommit mode."""
    raw.autocommit = True
    rows = raw.execute(_SETTINGS).fetchall()
    settings = {name: Setting(name, value, source) for name, value, source in rows}
    (facts,) = raw.execute(_FACTS).fetchall()
    user, database, standby, pid, superuser, *limits, standbys, known, told = facts
    pooled = raw.info.backend_pid != pid
    if not pooled:
        raw.execute(_NO_TIMEOUTS)
    reserved = ("superuser_reserved_connections", "reserved_connections")
    kept = 0 if superuser else sum(int(settings[name].value) for name in reserved if name in settings)
    limits = [limit for limit in limits if limit >= 0]
    return ServerFacts(
        version=raw.info.server_version,
        user=user,
        database=database,
        standby=standby,
        superuser=superuser,
        pooled=pooled,
        connections=min([int(settings["max_connections"].value) - kept, *limits]),
        standbys=standbys,
        identity_readable=known,
        status_readable=told,
        clock_ahead=_clock_ahead(raw),
        settings=settings,
    )


def _clock_ahead(raw: PsycopgRawConnection) -> float:
    before = time.time()
    ((theirs,),) = raw.execute(_CLOCK).fetchall()
    return float(theirs) - (before + time.time()) / 2
