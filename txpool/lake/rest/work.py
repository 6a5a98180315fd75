"""What one transaction appends to the tables of a REST catalog: it is staged, and prepared by a reference in each."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from txpool import failpoints
from txpool.errors import OperationalError, ProgrammingError
from txpool.lake.journals.files import AttemptFiles
from txpool.lake.rest.place import looking_again
from txpool.lake.rest.references import References
from txpool.lake.rest.snapshots import Reference, added_files, appended
from txpool.lake.staged import StagedFiles
from txpool.resources.base import Refused
from txpool.resources.own.resource import Work

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from txpool.lake.rest.catalog import RestLakeCatalog
    from txpool.tm.transaction import Transaction


@dataclass(slots=True)
class StagedAppend:
    """A table as the transaction sees it, and the snapshots that others have made."""

    metadata: TableMetadata
    theirs: frozenset[int]


class ReferencesWork(StagedFiles, Work):
    """The appends of one transaction in one REST catalog."""

    def __init__(self, place: References, gtrid: str) -> None:
        super().__init__(place.name, place.journals, gtrid)
        self.place = place
        self.staged: dict[tuple[str, ...], StagedAppend] = {}
        #: What is prepared, or may be.
        self.references: list[Reference] = []
        self._begun = self._has_journal = False
        self._catalog: RestLakeCatalog | None = None

    @property
    def catalog(self) -> RestLakeCatalog:
        """The catalog within the transaction."""
        if self._catalog is None:
            from txpool.lake.rest.catalog import RestLakeCatalog

            self._catalog = RestLakeCatalog(self)
        return self._catalog

    def _transaction(self) -> Transaction | None:
        found: Transaction | None = None if self.owner is None else self.owner()
        return found

    def _begin(self, transaction: Transaction) -> None:
        self._begun = True
        try:
            self._journal = self.journals.reopen(self.gtrid)  # another branch of the transaction's, which is prepared
        except FileNotFoundError:
            self._open(transaction, self._hold)

    def _hold(self, journal: Any) -> None:
        self._has_journal = True
        self.journals.hold(journal, self.gtrid)

    @property
    def idle(self) -> bool:
        return not self._begun

    def prepare(self, xid: str) -> None:
        with self._lock:
            self._over, journal = True, self._journal
        try:
            self._require_finished()
        except ProgrammingError as error:
            raise Refused(str(error)) from error
        if journal is None:
            raise Refused(f"the journal of {self.gtrid} could not be opened")
        if self.journals.is_removed(journal):
            raise Refused(self._removed())
        try:
            with closing(AttemptFiles(self.journals, journal)) as files:
                for name, staged in sorted(self.staged.items()):
                    looking_again(partial(self._refer, xid, name, staged, files, journal))
                    if failpoints.armed:
                        failpoints.hit("lake.referenced")
            if self.journals.is_removed(journal):  # since what is noted now is what a sweep has looked at, or not
                raise OperationalError(self._removed())
        finally:
            self._close()  # whoever ends it locks the journal

    def _removed(self) -> str:
        return f"{self.journals.shown(self.gtrid)}, which lists what {self.gtrid} has made, was removed"

    def _refer(self, xid: str, name: tuple[str, ...], staged: StagedAppend, files: AttemptFiles, journal: Any) -> None:
        """Make the reference in one table, unless it is there."""
        table = self.place.client.load_table(name)
        metadata, uuid = table.metadata, str(table.metadata.table_uuid)
        if uuid != str(staged.metadata.table_uuid):
            raise OperationalError(f"table {'.'.join(name)} is another one since {self.gtrid} has read it")
        found = metadata.refs.get(xid)
        if found is not None:
            # One of ours is there if its commit has landed, and only the answer was lost.
            self.references = [
                each for each in self.references if each.uuid != uuid or each.snapshot == found.snapshot_id
            ]
            if any(each.uuid == uuid for each in self.references):
                return
            taken = f"table {'.'.join(name)} has a reference {xid} of somebody else's"
            raise OperationalError(taken) if self.references else Refused(taken)
        if not metadata.snapshots:
            self.place.begin_table(table)
            table = self.place.client.load_table(name)
            metadata = table.metadata
        io, then = self.journals.io(files), staged.metadata
        ours = [each for each in then.snapshots if each.snapshot_id not in staged.theirs]
        added = added_files(then, {each.snapshot_id for each in ours}, io)
        snapshot = appended(table, added, then.current_schema_id, then.default_spec_id, io)
        snapshot = self.place.proof.signed(snapshot, ours, xid, uuid)
        self.journals.sync(self._files.keys() | files.made)
        if failpoints.armed:
            failpoints.hit("lake.synced")
        reference = Reference(name, uuid, snapshot.snapshot_id, metadata.next_sequence_number() - 1)
        self.journals.note(journal, {"xid": xid, "reference": list(reference)})
        self.references.append(reference)
        if failpoints.armed:
            failpoints.hit("lake.noted")
        self.place.refer(table, xid, snapshot)
        self.references = [each for each in self.references if each.uuid != uuid or each is reference]

    def rollback(self) -> None:
        """Remove what is staged, unless a reference may be there: then it is ended by its name, or swept."""
        self._close()
        self._over = True
        if self._has_journal and not self.references:
            self.journals.clear_but(self.gtrid, set())
