"""Creates the decision log, and the tables of marks that are missing: `txpool-recovery init`, and `txpool init`."""

from __future__ import annotations

from dataclasses import dataclass

from txpool.config.secrets import describe_error
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError
from txpool.log import adopt_log, create_log, open_log
from txpool.resources.base import Role
from txpool.resources.driver.making import make_driver
from txpool.resources.marked.branch_rows import BranchRows
from txpool.resources.marked.xids import Xids


@dataclass(frozen=True, slots=True)
class Step:
    """One step of `init`. `done` is False if it failed."""

    done: bool
    text: str


def initialise(settings: RecoverySettings, *, adopt: bool = False) -> list[Step]:
    """Create the log and the tables that are missing; existing ones stay as they are.

    With `adopt`, a copied or moved log is accepted instead. Errors: ConfigurationError, LogError.
    """
    node, url = settings.node_name, settings.log_url
    if node is None or url is None:
        missing = "node.name" if node is None else "log.url"
        raise settings.properties.error(missing, "is missing: init creates the log for it")
    loaded = [*map(DataSourceSettings.load, settings.datasources)]
    marked = [each for each in loaded if Role(each.mode) is Role.MARKED]
    with_rows = [each for each in loaded if each.xa_evidence == "row"]
    user, password = settings.log_user, settings.log_password
    if adopt:
        adopt_log(url, node=node, user=user, password=password)
        result = "was adopted: recovery leaves all earlier branches alone"
    else:
        result = _result(created=create_log(url, node=node, user=user, password=password))
    open_log(url, node=node, user=user, password=password).close()
    return [
        Step(True, f"the decision log {url} of node {node} {result}"),
        *map(_create_table_of_marks, marked),
        *map(_create_table_of_rows, with_rows),
    ]


def _create_table_of_marks(settings: DataSourceSettings) -> Step:
    return _create(settings, Xids, settings.cmr_table)


def _create_table_of_rows(settings: DataSourceSettings) -> Step:
    return _create(settings, BranchRows, settings.xa_evidence_table)


def _create(settings: DataSourceSettings, kind: type[Xids], table: str) -> Step:
    """Create a table with the application's user, who then owns it."""
    try:
        created = kind(settings.name, make_driver(settings), table).create()
    except ConfigurationError:
        raise
    except Exception as error:
        return Step(False, f"datasource {settings.name}: the table {table} was not created: {describe_error(error)}")
    return Step(True, f"datasource {settings.name}: the table {table} {_result(created=created)}")


def _result(*, created: bool) -> str:
    return "was created" if created else "exists already, and stays as it is"
