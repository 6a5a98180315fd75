"""A check that no other log has the same node.name: each would take the other's branches for orphans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import Final

from txpool.config.settings import CoordinatorSettings, DataSourceSettings
from txpool.datasource import open_settings
from txpool.errors import Error
from txpool.findings.finding import Finding, warning
from txpool.log import open_log
from txpool.resources.base import Role
from txpool.resources.deadlines import step_until
from txpool.xid import split_gtrid

#: The longest wait for one database here: one that hangs is found again, and reported, by its own check.
_LONGEST_STEP: Final = 10.0


def findings(settings: CoordinatorSettings, *, step: float = _LONGEST_STEP) -> Iterator[Finding]:
    """A warning if datasources have branches or marks of this node whose incarnation the log does not know.

    `step` is how long each database has to answer, in seconds.
    """
    node, url = settings.node_name, settings.log_url
    if node is None or url is None or url == "memory:":
        return
    # Read before the log: a process that prepares has registered its incarnation before.
    held = {each for path in settings.datasources for each in _held(path, node, min(step, _LONGEST_STEP))}
    try:
        log = open_log(url, node=node, user=settings.log_user, password=settings.log_password)
    except Error:
        return  # the findings about the log have this error
    try:
        known = {*log.incarnations(), *log.expired()}
    finally:
        log.close()
    unknown = sorted(each for each in held if each[1] not in known)
    if unknown:
        shown = ", ".join(f"{incarnation} in {datasource}" for datasource, incarnation in unknown[:5])
        yield warning(
            "node",
            f"processes of node {node} that this log has never known have left branches or marks: {shown}",
            "another log has the same node.name, or this one was replaced or adopted: recovery by this log leaves "
            "these branches and marks alone",
            "give each log a node.name of its own; recover what is left with the log of those processes",
        )


def _held(path: Path, node: str, step: float) -> Iterable[tuple[str, str]]:
    """The datasource's name with each of the node's incarnations that has prepared branches or marks there."""
    try:
        settings = DataSourceSettings.load_without_idle(path)
        with step_until(monotonic() + step), open_settings(settings) as datasource:
            gtrids: list[str] = []
            if datasource.role is Role.PREPARED:
                prepared = datasource.branch_recovery().recover()
                gtrids = [branch.xid.gtrid for branch in prepared if branch.prepared_by(()) and not branch.elsewhere]
            elif datasource.role is Role.MARKED:
                gtrids = [row.gtrid for row in datasource.xids_table(nodes=(node,)).read()]
    except Exception:
        return []  # the datasource's own findings have this error
    named = [split_gtrid(gtrid) for gtrid in gtrids]
    return [(settings.name, each.incarnation) for each in named if each.node == node]
