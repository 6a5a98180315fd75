"""Findings about a PostgreSQL server for every mode: version, durability, timeouts, connections, pooler, clock."""

from __future__ import annotations

from collections.abc import Iterator

from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.postgresql.check.server import ServerFacts

_LOST_IN_ONE = "confirmed commits can be lost, and then one database has a transaction that another has not"
_OLDEST_VERSION = 130000  # the first with pg_xact_status(xid8), which tells how a transaction has ended
_CLOCK_TOLERANCE_SECONDS = 5.0
_LONGEST_TRANSACTION_SECONDS = 60.0  # assumed if transactions have no timeout
_SHORT_TIMEOUT_MILLISECONDS = 1000


def findings(server: ServerFacts, *, pool_size: int, timeout: float | None) -> Iterator[Finding]:
    """All findings; `timeout` is transaction.timeout in seconds, None if it is not known."""
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
            "a decision keeps it, so that a url that later leads to a copy or to another server is noticed; without "
            "it, a COMMIT whose answer is lost is a heuristic hazard",
            f'GRANT EXECUTE ON FUNCTION pg_control_system() TO "{server.user}";',
        )
    if not server.status_readable:
        yield warning(
            "status",
            f"{server.user} may not ask what became of a transaction",
            "of a prepared branch that is gone nothing shows how it ended: recovery takes it for committed, also if "
            "somebody has rolled it back by hand",
            f'GRANT EXECUTE ON FUNCTION pg_xact_status(xid8) TO "{server.user}";',
        )
    yield clock(server.clock_ahead)


def _version(server: ServerFacts) -> Iterator[Finding]:
    if server.version < _OLDEST_VERSION:
        yield failure(
            "version",
            f"PostgreSQL {server.release} is too old",
            "txpool calls pg_current_xact_id_if_assigned(), which PostgreSQL has since version 13",
            "upgrade the server to version 13 or later",
        )
    else:
        yield ok("version", f"PostgreSQL {server.release}, database {server.database}, user {server.user}")


def _writable(server: ServerFacts) -> Iterator[Finding]:
    if server.standby:
        yield failure(
            "standby",
            "this server is a standby, which can only be read",
            "nothing can be written, prepared or committed here",
            "name the primary in the url, or all servers and target_session_attrs: "
            f"postgresql://a:5432,b:5432/{server.database}?target_session_attrs=read-write",
        )
    elif server.settings["default_transaction_read_only"].value == "on":
        yield failure(
            "read-only",
            f"default_transaction_read_only is on for {server.user} in {server.database}",
            "every transaction is refused its first write, unless it begins with read_only=False",
            # The setting would refuse the ALTER as well.
            "SET default_transaction_read_only = off; " + server.reset("default_transaction_read_only", "off"),
        )


def durability(server: ServerFacts) -> Iterator[Finding]:
    """Findings about settings by which the server can lose what it has confirmed."""
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
            "a transaction in this database alone can be lost in a crash after its success was reported; prepared "
            "branches and marks are always flushed",
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
            "a session waits in its transaction while other databases or Spark's tasks work; when the server ends the "
            f"session, the whole transaction rolls back. A transaction may take {longest:g} s",
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
            "the server refuses the pool's further connections",
            f"write pool.max-size = {max(1, server.connections - 1)}, or raise the limit of the role, of the database, "
            "or max_connections",
        )


def pooler(server: ServerFacts) -> Iterator[Finding]:
    """A warning if a pooler is in between: then the server's process id is not the one that the client was given."""
    if server.pooled:
        yield warning(
            "pooler",
            "a pooler such as PgBouncer is between here and the server: the process id is not the server's. "
            "The pool_mode cannot be seen from here",
            "session and transaction mode serve a datasource; in statement mode nothing can be prepared. A decision "
            "log needs the server itself: a process that died would look alive for ever",
            "see SHOW CONFIG in its console; in transaction mode write driver.prepare_threshold = none, and use SET "
            "LOCAL in place of SET",
        )


def clock(ahead: float) -> Finding:
    """The difference between the server's clock and this machine's."""
    if abs(ahead) < _CLOCK_TOLERANCE_SECONDS:
        return ok("clock", f"its clock and ours are {abs(ahead):.1f} s apart")
    return warning(
        "clock",
        f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours",
        "no decision depends on a clock, but ages and logs of this machine and of that one cannot be compared",
        "let both follow the same time servers (NTP)",
    )
