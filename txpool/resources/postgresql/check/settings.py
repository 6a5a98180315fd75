"""What is wrong with a PostgreSQL server, whatever the mode: may it be written, does it keep what it has confirmed."""

from __future__ import annotations

from collections.abc import Iterator

from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.postgresql.check.server import ServerFacts

_LOST_IN_ONE = "what it has confirmed can be lost, and then one database has a transaction that another has not"
_OLDEST_VERSION = 130000  # the first that tells how a transaction of a given id has ended (pg_xact_status of an xid8)
_CLOCK_TOLERANCE_SECONDS = 5.0  # seconds
_LONGEST_TRANSACTION_SECONDS = 60.0  # seconds that a transaction may take where it has no timeout of its own
_SHORT_TIMEOUT_MILLISECONDS = 1000  # milliseconds


def findings(server: ServerFacts, *, pool_size: int, timeout: float | None) -> Iterator[Finding]:
    """`timeout` is transaction.timeout, where it is known."""
    yield from _version(server)
    yield from _writable(server)
    yield from durability(server)
    yield from _timeouts(server, timeout or _LONGEST_TRANSACTION_SECONDS)
    yield from _connections(server, pool_size)
    yield from pooler(server)
    if not server.identity_readable:
        yield warning(
            "identity",
            f"{server.user} may not read the server's system identifier",
            "a decision keeps it, so that a url that leads to a copy or to another server tomorrow is seen",
            f'GRANT EXECUTE ON FUNCTION pg_control_system() TO "{server.user}";',
        )
    yield clock(server.clock_ahead)


def _version(server: ServerFacts) -> Iterator[Finding]:
    if server.version < _OLDEST_VERSION:
        yield failure(
            "version",
            f"PostgreSQL {server.release} is too old",
            "txpool asks for pg_current_xact_id_if_assigned(), which PostgreSQL 13 was the first to have",
            "upgrade the server; 13 is the oldest that can be used",
        )
    else:
        yield ok("version", f"PostgreSQL {server.release}, database {server.database}, user {server.user}")


def _writable(server: ServerFacts) -> Iterator[Finding]:
    if server.standby:
        yield failure(
            "standby",
            "this server is a standby: it can be read only",
            "nothing can be written, prepared or finished here",
            "name the primary in the url, or all of them and what is wanted: "
            f"postgresql://a:5432,b:5432/{server.database}?target_session_attrs=read-write",
        )
    elif server.settings["default_transaction_read_only"].value == "on":
        yield failure(
            "read-only",
            f"default_transaction_read_only is on for {server.user} in {server.database}",
            "every transaction is refused its first write",
            # It binds whoever is to change it, too.
            "SET default_transaction_read_only = off; " + server.reset("default_transaction_read_only", "off"),
        )


def durability(server: ServerFacts) -> Iterator[Finding]:
    """Whether it keeps what it has confirmed."""
    settings = server.settings
    if settings["fsync"].value == "off":
        yield failure(
            "durability", "fsync is off", f"when the machine stops, {_LOST_IN_ONE}", server.reset("fsync", "on")
        )
    if settings["full_page_writes"].value == "off":
        yield warning(
            "durability",
            "full_page_writes is off",
            "a page that is half written when the machine stops stays damaged, unless the file system writes whole "
            "pages (ZFS does)",
            server.reset("full_page_writes", "on"),
        )
    if settings["synchronous_commit"].value == "off":
        yield warning(
            "durability",
            f"synchronous_commit is off for {server.user} in {server.database} (from: "
            f"{settings['synchronous_commit'].source})",
            "a transaction over this database alone can be lost in a crash after its success was reported; prepared "
            "branches and marks are not concerned, they are flushed all the same",
            server.reset("synchronous_commit", "on"),
        )
    if server.standbys and not settings["synchronous_standby_names"].value:
        yield warning(
            "durability",
            f"standbys that stream from it: {server.standbys}; and synchronous_standby_names is empty",
            f"after a failover {_LOST_IN_ONE} (reported as a heuristic outcome)",
            "name them: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();",
        )


def _timeouts(server: ServerFacts, longest: float) -> Iterator[Finding]:
    for name in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        setting = server.settings.get(name)
        if setting is None or not 0 < setting.milliseconds < longest * 1000:
            continue
        yield warning(
            "timeout",
            f"{name} is {setting.value} ms",
            "a transaction waits here while other databases or Spark's tasks work; the server cuts it then, and all of "
            f"it rolls back. Up to {longest:g} s are to be expected",
            server.reset(name, "0"),
        )
    for name in ("statement_timeout", "lock_timeout"):
        setting = server.settings[name]
        if 0 < setting.milliseconds < _SHORT_TIMEOUT_MILLISECONDS:
            yield warning(
                "timeout",
                f"{name} is {setting.value} ms",
                "a statement that takes longer fails, and its whole transaction rolls back; the end of prepared "
                "branches is not concerned",
                server.reset(name, "0"),
            )


def _connections(server: ServerFacts, pool_size: int) -> Iterator[Finding]:
    if server.connections < pool_size:
        yield warning(
            "connections",
            f"pool.max-size is {pool_size}, and {server.user} may have {server.connections} connections to "
            f"{server.database}",
            "what the pool then asks for is refused by the server",
            f"write pool.max-size = {max(1, server.connections - 1)}, or raise the limit of the role, of the database, "
            "or max_connections",
        )


def pooler(server: ServerFacts) -> Iterator[Finding]:
    """The server gives each session its process id; what stands between gives out others."""
    if server.pooled:
        yield warning(
            "pooler",
            "a pooler such as PgBouncer is between here and the server: the process that answers is not the one that "
            "the connection was told of. Its pool_mode cannot be seen from here",
            "session and transaction mode serve a datasource; in statement mode nothing can be prepared. A decision "
            "log needs the server itself: a process that died would look alive for ever",
            "see SHOW CONFIG in its console; in transaction mode write driver.prepare_threshold = none, and let no "
            "SET of your own outlive its transaction",
        )


def clock(ahead: float) -> Finding:
    """The server's clock against ours."""
    if abs(ahead) < _CLOCK_TOLERANCE_SECONDS:
        return ok("clock", f"its clock and ours are {abs(ahead):.1f} s apart")
    return warning(
        "clock",
        f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours",
        "no decision depends on a clock, but ages and logs of this machine and of that one cannot be compared",
        "let both follow the same time servers (NTP)",
    )
