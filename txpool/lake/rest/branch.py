"""The branch of a transaction in a REST catalog, and recovery's access to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txpool.lake.rest.place import GENERATION
from txpool.lake.rest.references import TABLES, References
from txpool.lake.rest.snapshots import Reference, encode
from txpool.lake.rest.work import ReferencesWork
from txpool.lake.warehouse import LakeFiles
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.own.branch import ResourceBranch, ResourceRecovery
from txpool.resources.recovery_access import PreparedBranch, StagingTable
from txpool.xid import Xid, is_gtrid

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.base import BegunBy

_made: WeakKeyDictionary[Any, References] = WeakKeyDictionary()


def begin(source: Source, transaction: BegunBy) -> tuple[ReferencesWork, ReferencesBranch]:
    """The work of a transaction, and its branch."""
    place = _made.get(source)
    if place is None:
        place = _made.setdefault(source, References(source.settings))
    work = ReferencesWork(place, transaction.gtrid)
    return work, ReferencesBranch(place, work, transaction.gtrid)


class ReferencesBranch(ResourceBranch):
    """The branch of a transaction in a REST catalog."""

    def __init__(self, place: References, work: ReferencesWork, gtrid: str) -> None:
        super().__init__(place, work, gtrid)
        self._place, self._appends = place, work

    def start_prepare(self) -> None:
        try:
            super().start_prepare()
        finally:  # whatever became of it: it is rolled back where it may be
            tables = {TABLES: encode(self._appends.references)}
            self.record = self.record._replace(evidence={**self.record.evidence, **tables})

    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        return self._place.end(self.record, commit=commit)


class ReferencesRecovery(ResourceRecovery):
    """Recovery's access to the branches in a REST catalog. Thread-safe."""

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = True) -> None:
        self._place = References(settings, recovery=recovery)
        super().__init__(self._place)

    def recover(self) -> list[PreparedBranch]:
        ours: dict[Xid, list[Reference]] = {}
        for xid, reference, proven in self._place.listed():
            ours.setdefault(xid, []).extend([reference] * proven)
        generation = {GENERATION: self._place.generation()}
        return [
            PreparedBranch(xid, evidence={**generation, TABLES: encode(sorted(found))})
            if found
            else PreparedBranch(xid, roles=frozenset(), evidence=generation)
            for xid, found in ours.items()
        ]

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        return self._place.end(record, commit=commit)


class ReferencesStaging:
    """Recovery's access to what dead transactions have left in the warehouse of a REST catalog."""

    def __init__(self, settings: DataSourceSettings) -> None:
        self._place = References(settings, recovery=True)

    def tables(self) -> Sequence[LakeFiles]:
        """The journals. Those of what is prepared are refused when they are swept."""
        self._place.identity()
        journals = self._place.journals
        return [LakeFiles(each, journals.shown(each)) for each in sorted(set(journals.gtrids())) if is_gtrid(each)]

    def drop(self, table: StagingTable) -> None:
        self._place.sweep(table.gtrid)
