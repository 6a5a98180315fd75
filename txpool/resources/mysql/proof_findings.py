"""The findings of `txpool check` about identity and generation in MariaDB and MySQL, over each driver."""

from __future__ import annotations

from collections.abc import Iterator

from txpool.findings.finding import Finding, warning
from txpool.resources.mysql.session.proof import BY_ROWS, account_of, generation_statements, identity_statements
from txpool.resources.mysql.session.server import GENERATIONS_TABLE, IDENTITY_TABLE


def identity_findings(identity: str, user: str) -> Iterator[Finding]:
    """A warning if the account cannot read the server's identity."""
    if not identity:
        statements = identity_statements(account_of(user))
        yield warning(
            "identity",
            f"{user} cannot read the server's identity in {IDENTITY_TABLE}",
            "a decision keeps it, so that a url that later leads to another server is noticed, and so that a branch "
            "that is gone after a lost answer counts as committed",
            f"as an administrator: {'; '.join(statements)};",
            statements,
        )


def generation_findings(allowed: bool, user: str, *, adds: bool = True, by_rows: bool = True) -> Iterator[Finding]:
    """A warning if the account cannot add the server's generation, or cannot read it, as recovery does.

    `by_rows` says that the driver can write rows instead.
    """
    if not allowed:
        statements = generation_statements(account_of(user), adds=adds)
        yield warning(
            "generation",
            f"{user} cannot {'keep' if adds else 'read'} the server's generation in {GENERATIONS_TABLE}",
            "without it, a branch that is gone after a lost answer to its COMMIT, as when a process is killed just "
            "then, is a heuristic hazard: the server may have been restored from a backup that never had it",
            f"as an administrator: {'; '.join(statements)};{f' or {BY_ROWS}' if by_rows else ''}",
            statements,
        )
