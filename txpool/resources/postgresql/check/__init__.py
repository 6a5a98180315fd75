"""The findings of `txpool check` about a datasource in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from txpool.config.settings import DataSourceSettings
from txpool.errors import translated
from txpool.findings.finding import Finding
from txpool.resources.base import Role
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.check import marks, prepared, session, settings, trust
from txpool.resources.postgresql.check.connecting import connected
from txpool.resources.postgresql.check.server import server_facts

# What any role that may connect can do, by the role of the datasource's branches.
_CONNECT_ALLOWS = {
    Role.PREPARED: "a role that connects sees the names of prepared branches, and can take slots and names, so "
    "that a transaction rolls back; it cannot end a branch of this application, or change a decision",
    Role.MARKED: "a role that connects can create tables and schemas, if it has the right, before the application "
    "creates its own; those are refused then, and so are transactions",
}


def findings(datasource: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
    """As `ResourceManager.findings`. Errors: NotConnected, ConfigurationError, and the database's own."""
    role = Role(datasource.mode)
    with connected(datasource) as raw, translated():
        server = server_facts(raw)
        yield from settings.findings(server, pool_size=datasource.pool_max_size, timeout=timeout)
        if role is Role.PREPARED:
            yield from prepared.findings(raw, server, datasource, stale_after)
            if datasource.xa_evidence == "row":
                yield from marks.rows(raw, datasource)
        elif role is Role.MARKED:
            yield from marks.findings(raw, datasource)
        roles = make_driver(datasource).roles
        if role in _CONNECT_ALLOWS:
            yield from trust.connect(raw, server, roles, _CONNECT_ALLOWS[role])
        yield from trust.spark(raw, roles)
        yield from trust.search_path(raw, roles)
        yield from session.findings(raw, datasource)
