"""What a PostgreSQL server says of itself, asked in one go, and how its settings are changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, LiteralString

from txpool.resources.postgresql.check.connecting import quoted

_SETTINGS: LiteralString = """
    select name, setting, source from pg_catalog.pg_settings where name in (
        'max_prepared_transactions', 'max_connections', 'superuser_reserved_connections', 'reserved_connections',
        'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'default_transaction_read_only',
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
"""
_FACTS: LiteralString = """
    select session_user, current_database(), pg_is_in_recovery(), pg_backend_pid(), rolsuper, rolconnlimit,
        (select datconnlimit from pg_database where datname = current_database()),
        (select count(*) from pg_stat_get_wal_senders() sender where sender.state is distinct from 'backup'),
        has_function_privilege('pg_control_system()', 'execute')
    from pg_roles where rolname = session_user
"""
# What is configured was read before; and a session that a pooler gives to others is left as it is.
_NO_TIMEOUTS: LiteralString = "set statement_timeout = 0; set lock_timeout = '2s'"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as a new session has it: `source` says who has set it, in pg_settings' words."""

    name: str
    value: str
    source: str

    @property
    def milliseconds(self) -> int:
        """Of a timeout; 0 is none."""
        return int(self.value)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server, and the session's own role in it."""

    version: int  #: 180002 is 18.2
    user: str
    database: str
    standby: bool
    superuser: bool
    #: Between us and the server is something that has sessions of its own.
    pooled: bool
    #: Connections that this role may have in this database.
    connections: int
    #: Standbys that stream from it now.
    standbys: int
    #: Whether its system identifier may be read.
    identity_readable: bool
    #: How far its clock is ahead of ours, in seconds.
    clock_ahead: float
    settings: dict[str, Setting]

    @property
    def release(self) -> str:
        """As people call the version."""
        return f"{self.version // 10000}.{self.version % 10000}"

    def reset(self, name: str, wanted: str) -> str:
        """What gives a setting the value that is wanted, by where it has its value from."""
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


def server_facts(raw: Any) -> ServerFacts:
    """Ask over a fresh connection of the driver `psycopg`, which is in autocommit mode from then on."""
    raw.autocommit = True
    rows = raw.execute(_SETTINGS).fetchall()
    settings = {name: Setting(name, value, source) for name, value, source in rows}
    user, database, standby, pid, superuser, *limits, standbys, known = raw.execute(_FACTS).fetchone()
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
        clock_ahead=_clock_ahead(raw),
        settings=settings,
    )


def _clock_ahead(raw: Any) -> float:
    before = time.time()
    (theirs,) = raw.execute("select extract(epoch from pg_catalog.clock_timestamp())::float8").fetchone()
    return float(theirs) - (before + time.time()) / 2
