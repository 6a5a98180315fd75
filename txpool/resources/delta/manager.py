"""The resource manager of folders of Delta tables: `driver = delta`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.errors import Error, described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resource_managers import DELTA
from txpool.resources.delta.branch import DeltaResource
from txpool.resources.delta.table import LOG, load
from txpool.resources.delta.work import DeltaWork
from txpool.resources.files.manager import Places, of_place
from txpool.resources.files.place import HIDDEN
from txpool.resources.parts import SparkPart

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source

_RETENTION = "delta.deletedFileRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(\w+?)s?", re.IGNORECASE)
#: A commit takes no longer from the names of its files to its entry in the log, in seconds.
_SHORT = 3600


class Delta(Places):
    """Tables of Delta Lake in a folder, to which transactions append."""

    driver = DELTA
    database = "a folder of Delta tables"
    schemes = ("delta:",)
    url_example = "delta:/srv/tables"
    requirement = "txpool[delta]"
    spark = SparkPart(
        "txpool.spark.table.lake.delta:DeltaWrite",
        why_no_tasks="has Delta tables, which the tasks of write_table() write in one way",
    )
    instead_of_connecting = "its tables are in files, and txpool.lake.write_table() appends to them"
    resource = DeltaResource
    work = DeltaWork

    def workload(self, source: Source) -> Any:
        from txpool.resources.delta.workload import KitRows

        return KitRows(str(source.settings.folder))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        place = self._place(settings)
        try:
            yield from of_place(settings.name, place, self.branch_recovery(settings).recover())
            for table in _tables(place.path):
                yield from self._of_table(settings.name, place.path, table)
        except (Error, OSError) as error:
            yield failure("connection", f"{settings.name}: {place.path} cannot be used: {described(error)}")

    def _of_table(self, name: str, path: Path, table: str) -> Iterator[Finding]:
        try:
            _, state = load(path / table, f"{name}.{table}")
            state.require_writable(f"{name}.{table}")
        except Error as error:
            why = "transactions cannot append to it"
            yield warning("table", described(error), why, "leave it out of transactions, or mend it")
            return
        found = state.metadata["configuration"].get(_RETENTION, "interval 1 week")
        interval = _INTERVAL.fullmatch(found.strip())
        kept = int(interval[1]) * _SECONDS.get(interval[2].lower(), 0) if interval else 0
        if kept < _SHORT:
            yield warning(
                "maintenance",
                f"table {table} has {_RETENTION} = {found}",
                "a VACUUM beside a commit would remove files that the commit is about to name",
                f"let it be an hour or more: {_RETENTION} = interval 7 days",
            )
        else:
            yield ok("maintenance", f"table {table} keeps files for {kept} s that nothing names ({_RETENTION})")


def _tables(root: Path) -> Iterator[str]:
    """The names of the tables below a folder."""
    for folder, inner, _ in os.walk(root):
        if LOG in inner:
            yield os.path.relpath(folder, root)
        inner[:] = [] if LOG in inner else sorted(each for each in inner if each != HIDDEN)


MANAGER = Delta()
