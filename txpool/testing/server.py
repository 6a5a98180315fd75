"""The environment of a PostgreSQL server out of the wheel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from txpool.config.settings.datasource import variables_prefix
from txpool.demo.server import EmbeddedPostgres


def variables(server: EmbeddedPostgres, names: Iterable[str], log: Path) -> dict[str, str]:
    """The environment in which datasources of these names lead to the server, and the decision log to a new folder.

    A log of an earlier server would look for that one's databases, and recovery would say that it misses them.
    """
    values = {"TXPOOL_LOG_URL": f"sqlite:///{log}", "TXPOOL_LOG_CREATE": "true"}
    for name in names:
        prefix = variables_prefix(name)
        values |= {f"{prefix}URL": server.url(name), f"{prefix}PASSWORD": server.password}
    return values
