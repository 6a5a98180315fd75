"""`txpool-recovery init`: the decision log, and the tables of marks that are missing."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.scan.report import describe_error
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError
from txpool.log import adopt_log, open_log
from txpool.resources.drivers import make_driver
from txpool.resources.xids import Xids


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done, or could not be."""

    done: bool
    text: str


def initialise(settings: RecoverySettings, *, adopt: bool = False) -> list[Step]:
    """Create what is missing; what is there stays as it is. Errors: ConfigurationError, LogError."""
    node, url = settings.node_name, settings.log_url
    if node is None or url is None:
        missing = "node.name" if node is None else "log.url"
        raise settings.properties.error(missing, "is missing: the log is made for it")
    marked = [each for each in map(DataSourceSettings.load, settings.datasources) if each.mode == "cmr"]
    user, password = settings.log_user, settings.log_password
    if adopt:
        adopt_log(url, node=node, user=user, password=password)
    open_log(url, node=node, create=not adopt, user=user, password=password).close()
    verb = "was adopted: all earlier branches are left alone" if adopt else "is there"
    return [Step(True, f"the decision log {url} of node {node} {verb}"), *map(_create_table_of_marks, marked)]


def _create_table_of_marks(settings: DataSourceSettings) -> Step:
    """As the application's user, whose table it will be."""
    try:
        Xids(settings.name, make_driver(settings), settings.cmr_table).create()
    except ConfigurationError:
        raise
    except Exception as error:
        return Step(
            False, f"datasource {settings.name}: the table {settings.cmr_table} was not made: {describe_error(error)}"
        )
    return Step(True, f"datasource {settings.name}: the table {settings.cmr_table} is there")
