"""Whether a node's name is its own: two logs that share one would each take the other's branches for nobody's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from txpool.config.settings import CoordinatorSettings, DataSourceSettings
from txpool.datasource import DataSource
from txpool.errors import Error
from txpool.findings.finding import Finding, warning
from txpool.log import open_log
from txpool.resources.base import Role
from txpool.xid import split_gtrid


def findings(settings: CoordinatorSettings) -> Iterator[Finding]:
    """What the datasources hold under this node's name, by processes that its log has never known."""
    node, url = settings.node_name, settings.log_url
    if node is None or url is None or url == "memory:":
        return
    # Before the log is read: whoever prepares has its incarnation there.
    held = {each for path in settings.datasources for each in _held(path, node)}
    try:
        log = open_log(url, node=node, user=settings.log_user, password=settings.log_password)
    except Error:
        return  # which is a finding of its own
    try:
        known = {*log.incarnations(), *log.expired()}
    finally:
        log.close()
    strange = sorted(each for each in held if each[1] not in known)
    if strange:
        shown = ", ".join(f"{incarnation} in {datasource}" for datasource, incarnation in strange[:5])
        yield warning(
            "node",
            f"processes of node {node} that this log has never known have left something: {shown}",
            "another log has the same node.name, or this one was replaced or adopted: recovery by this log leaves "
            "alone what they hold",
            "give each log a node.name of its own; what is left, end with the log that it was begun with",
        )


def _held(path: Path, node: str) -> Iterable[tuple[str, str]]:
    """The node's incarnations that a datasource has something of, by prepared branches of ours or marks."""
    try:
        settings = DataSourceSettings.load(path, pool_min_size=0)
        with DataSource.from_settings(settings) as datasource:
            gtrids: list[str] = []
            if datasource.role is Role.PREPARED:
                prepared = datasource.branch_recovery().recover()
                gtrids = [branch.xid.gtrid for branch in prepared if branch.prepared_by(()) and not branch.elsewhere]
            elif datasource.role is Role.MARKED:
                gtrids = [row.gtrid for row in datasource.xids_table(nodes=(node,)).read()]
    except Exception:
        return []  # one that does not answer is a finding of its own
    named = [split_gtrid(gtrid) for gtrid in gtrids]
    return [(settings.name, each.incarnation) for each in named if each.node == node]
