"""The resource manager of `driver = iceberg`: its catalog is in a datasource, whose branches carry its work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from txpool.errors import Error, OperationalError, described
from txpool.findings.finding import Finding, failure, ok
from txpool.resource_managers import ICEBERG
from txpool.resources.manager import ResourceManager
from txpool.resources.messages.manager import NothingPrepared
from txpool.resources.parts import SparkPart

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.recovery_access import StagingArea


class LakeConflict(OperationalError):
    """Another transaction has committed a change of the same table meanwhile; this one rolls back."""


class Iceberg(ResourceManager):
    """Lakes. They prepare nothing by themselves: the tables' pointers are in the branches of the catalog's datasource.

    Their journals are what recovery sweeps, as it does what Spark's writes have staged.
    """

    driver = ICEBERG
    database = "Iceberg"
    schemes = (f"{ICEBERG}:",)
    url_example = f"{ICEBERG}:warehouse"
    requirement = "txpool[lake]"
    spark = SparkPart(
        "txpool.spark.table.lake.write:LakeWrite",
        why_no_tasks="has Iceberg tables, which the tasks of write_table() write in one way",
    )
    orphaned_after = 86_400.0  # Spark's remove_orphan_files takes no less
    instead_of_connecting = "its tables are in files, and txpool.lake.catalog() works with them"

    def check(self, settings: DataSourceSettings) -> None:
        for key, example in (("catalog", "lake.properties"), ("warehouse", "warehouse")):
            if key not in settings.properties:
                raise settings.properties.error(key, f"is missing: write {key} = {example}")

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> NothingPrepared:
        return NothingPrepared(settings.name)

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagingArea | None:
        area: StagingArea = resolve_name("txpool.lake.warehouse:LakeStaging")(settings, lock_timeout)
        return area

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        theirs = sys.modules.get("pyiceberg.exceptions")
        conflicts = () if theirs is None else (theirs.CommitFailedException, theirs.ValidationException)
        return isinstance(error, (LakeConflict, *conflicts))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        try:
            yield from resolve_name("txpool.lake.check:findings")(settings)
        except (Error, OSError) as error:
            yield failure("connection", f"{settings.name} cannot be used: {described(error)}")
            return
        yield ok("connection", f"the catalog of {settings.name} is in {settings.catalog}: check that file, too")


MANAGER = Iceberg()
