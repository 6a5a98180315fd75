"""A REST catalog in which branches are references: how one is made, ended, listed, and what it has left removed.

The reference of a branch has the xid's name, in each table that it appends to, and leads to a staged snapshot. The
commit moves main and drops the reference in one conditional commit, so that of a commit and a rollback one succeeds.
If the reference is gone, a snapshot on main that is provably the branch's shows that it has committed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate

from txpool import failpoints
from txpool.config.secrets import redact
from txpool.errors import OperationalError, described
from txpool.lake.journals.files import AttemptFiles
from txpool.lake.named import named_by, named_files
from txpool.lake.rest.client import TableGone
from txpool.lake.rest.place import GENERATION, LookAgain, RestPlace, looking_again
from txpool.lake.rest.snapshots import (
    Reference,
    added_files,
    appended,
    decode,
    drops,
    forgets,
    is_reached,
    leads,
)
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.own.branch import leads_elsewhere
from txpool.xid import Xid, is_gtrid, parse

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("txpool")

TABLES: Final = "tables"
#: The note of a branch that is about to commit.
_DECIDED: Final = {"decided": True}


class References(RestPlace):
    """The branches in a REST catalog. Thread-safe. No I/O before its methods."""

    def refer(self, table: Table, xid: str, staged: Snapshot) -> None:
        """Make the branch's reference in one table. LookAgain if it may not be there."""
        self.committed(
            table,
            {xid: None, MAIN_BRANCH: table.metadata.current_snapshot_id},
            AddSnapshotUpdate(snapshot=staged),
            leads(xid, staged.snapshot_id),
        )

    # -- what is prepared ---------------------------------------------------------------------------------------

    def begin(self) -> Any:
        raise NotImplementedError("its work begins with a transaction")

    def prepared(self) -> list[str]:
        return sorted({xid.joined for xid, _, _ in self.listed()})

    def commit(self, xid: str) -> bool:
        return self._end(BranchRecord(_parsed(xid), self.name), commit=True) is BranchOutcome.COMMITTED

    def rollback(self, xid: str) -> bool:
        return self._end(BranchRecord(_parsed(xid), self.name), commit=False) is BranchOutcome.ROLLED_BACK

    def listed(self) -> Iterator[tuple[Xid, Reference, bool]]:
        """The references with names of ours in all tables, and whether each is provably ours, and not published.

        Also those of journals that went with their tables. Of a branch that was to commit, nobody knows how it ended.
        """
        proof, seen = self.proof, set()
        for table in self.client.tables():
            metadata, uuid = table.metadata, str(table.metadata.table_uuid)
            seen.add(uuid)
            for name, reference in metadata.refs.items():
                xid = parse(name)
                if xid is not None:
                    staged = metadata.snapshot_by_id(reference.snapshot_id)
                    ours = proof.holds(staged, name, uuid) and not proof.published(metadata, name)
                    since = 0 if staged is None or staged.sequence_number is None else staged.sequence_number - 1
                    yield xid, Reference(table.name(), uuid, reference.snapshot_id, since), ours

        for gtrid in sorted({each for each in self.journals.gtrids() if is_gtrid(each)}):
            with suppress(OperationalError, ValueError):  # a damaged one keeps no other branch from its end
                noted = [] if self._is_decided(gtrid) else self._noted(gtrid)
                yield from ((_parsed(name), each, True) for name, each in noted if each.uuid not in seen)

    # -- the end ------------------------------------------------------------------------------------------------

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        """End a prepared branch: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""
        try:
            elsewhere = leads_elsewhere(self, record)
            return (BranchOutcome.UNKNOWN, elsewhere) if elsewhere else (self._end(record, commit=commit), "")
        except Exception as error:
            return BranchOutcome.UNKNOWN, redact(described(error), self.settings.secrets)

    def _end(self, record: BranchRecord, *, commit: bool) -> BranchOutcome:
        decided = BranchOutcome.COMMITTED if commit else BranchOutcome.ROLLED_BACK
        references = self._references_of(record)
        if commit:
            self._note_decided(record.xid.gtrid)
        ended, failures = [], []
        for each in references or ():
            try:
                ended.append(looking_again(partial(self._end_in_table, record.xid, each, commit=commit)))
            except OperationalError as error:  # of this table: it may be gone for good, and the others are not
                failures.append(error)
        if failures:
            raise failures[0]
        outcomes = {outcome for outcome, _ in ended}
        if references is not None and outcomes <= {decided}:
            found = {
                (record.xid.joined, each.uuid): (metadata, each.since)
                for (_, metadata), each in zip(ended, references, strict=True)
            }
            if failpoints.armed:
                failpoints.hit("lake.ended")
            try:
                self._clear(record.xid.gtrid, found)
            except Exception:
                logger.warning("%s: what %s has left stays for recovery", self.name, record.xid.gtrid, exc_info=True)
            return decided
        if not commit and outcomes == {BranchOutcome.COMMITTED}:
            return BranchOutcome.COMMITTED
        same = bool(record.identity) and record.evidence.get(GENERATION) == self.generation()
        # Of a commit nothing shows that it was done: a reference that somebody has dropped is gone for good.
        unknown = commit or not same or BranchOutcome.COMMITTED in outcomes
        return BranchOutcome.LOST if unknown else BranchOutcome.ABSENT

    def _references_of(self, record: BranchRecord) -> list[Reference] | None:
        """Where the branch has references, by the decision, the journal, or our proof in the tables; None: nowhere."""
        xid, found = record.xid.joined, []
        if TABLES in record.evidence:
            found = decode(json.loads(record.evidence[TABLES]))
        else:
            found = [each for xid_, each, ours in self.listed() if ours and xid_.joined == xid]
            known = {each.uuid for each in found}
            noted = self._noted(record.xid.gtrid)
            found += [each for name, each in noted if name == xid and each.uuid not in known]
            if not found:
                return None
        return sorted(found)

    def _noted(self, gtrid: str) -> list[tuple[str, Reference]]:
        """What a transaction's journal says of its references, with their names. Of those in one table, the last."""
        notes = [each for each in self.journals.notes(gtrid) if "reference" in each]
        found = zip(notes, decode(each["reference"] for each in notes), strict=True)
        return list({(note["xid"], each.uuid): (str(note["xid"]), each) for note, each in found}.values())

    def _note_decided(self, gtrid: str) -> None:
        """Write down, before any table has what is staged, that some may have it from now on, also if they go."""
        if not self._is_decided(gtrid):
            with self.journals.held_alone(gtrid) as journal:
                if journal is not None:
                    self.journals.note(journal, _DECIDED)

    def _is_decided(self, gtrid: str) -> bool:
        return _DECIDED in self.journals.notes(gtrid)

    def _end_in_table(
        self, xid: Xid, reference: Reference, *, commit: bool
    ) -> tuple[BranchOutcome | None, TableMetadata | None]:
        """How the branch has ended in one table; None if nothing shows that. And the metadata then of what is there."""
        try:
            table = self.client.table_of(reference)
        except TableGone:
            if not commit and not self._is_decided(xid.gtrid):
                return BranchOutcome.ROLLED_BACK, None  # the reference went with it
            if not self._is_gone_for_good(reference):
                raise
            return None, None
        metadata, name = table.metadata, xid.joined
        found = metadata.refs.get(name)
        if found is None:
            return (BranchOutcome.COMMITTED if self.proof.published(metadata, name) else None), metadata
        if found.snapshot_id != reference.snapshot:
            raise OperationalError(
                f"the reference {name} of table {'.'.join(table.name())} leads to snapshot {found.snapshot_id}, and "
                f"{reference.snapshot} was prepared: somebody has moved it, and it is left as it is. Let it lead there "
                "again, and recovery goes on"
            )
        outcome = BranchOutcome.COMMITTED
        if self.proof.published(metadata, name):  # by whomever: that is how it has ended, and it is done once
            after = self._dropped(table, name)
        elif commit:
            after = self._published(table, xid, reference)
        else:
            outcome, after = BranchOutcome.ROLLED_BACK, self._dropped(table, name, forget=True)
        if failpoints.armed:
            failpoints.hit("lake.table-ended")
        return outcome, after

    def _is_gone_for_good(self, reference: Reference) -> bool:
        """Whether the datasource's file says so of its table."""
        return ".".join(reference.table) in self.settings.dropped_tables

    def _dropped(self, table: Table, name: str, *, forget: bool = False) -> TableMetadata:
        """Drop a reference, and let the table forget its snapshot."""
        metadata = table.metadata
        staged = metadata.refs[name].snapshot_id
        updates: list[Any] = [drops(name)]
        if forget and not is_reached(metadata, staged, but=name):
            updates.append(forgets(staged))
        return self.committed(table, {name: staged, MAIN_BRANCH: metadata.current_snapshot_id}, *updates)

    def _published(self, table: Table, xid: Xid, reference: Reference) -> TableMetadata:
        """Move main, and drop the reference. If others have committed, what is staged is appended again."""
        metadata, name = table.metadata, xid.joined
        number, main = metadata.refs[name].snapshot_id, metadata.current_snapshot_id
        staged = metadata.snapshot_by_id(number)
        if staged is None:
            raise OperationalError(f"table {'.'.join(table.name())} has no snapshot {number}, to which {name} leads")
        as_they_were = {name: number, MAIN_BRANCH: main}
        drop = drops(name)
        if staged.parent_snapshot_id == main and staged.schema_id == metadata.current_schema_id:
            return self.committed(table, as_they_were, leads(MAIN_BRANCH, number), drop)
        with self._journal(xid, reference) as journal:
            files = AttemptFiles(self.journals, journal)
            manifests = [each for each in staged.manifests(table.io) if each.added_snapshot_id == number]
            spec = manifests[0].partition_spec_id if manifests else metadata.default_spec_id
            schema = metadata.current_schema_id if staged.schema_id is None else staged.schema_id
            added = added_files(metadata, [number], table.io)
            made = appended(table, added, schema, spec, self.journals.io(files))
            self.journals.sync(files.made)
            made = self.proof.signed(made, [staged], name, str(metadata.table_uuid))
            made = made.model_copy(update={"schema_id": metadata.current_schema_id})
            updates: list[Any] = [AddSnapshotUpdate(snapshot=made), leads(MAIN_BRANCH, made.snapshot_id), drop]
            if not is_reached(metadata, number, but=name):
                updates.append(forgets(number))
            if failpoints.armed:
                failpoints.hit("lake.rebased")
            return self.committed(table, as_they_were, *updates)

    @contextmanager
    def _journal(self, xid: Xid, reference: Reference) -> Iterator[Any]:
        """The branch's journal, held. It is a new one if another has ended the branch, or somebody has removed it.

        It knows of the reference before it lists a file: so a sweep keeps what the table names.
        """
        with suppress(FileExistsError):
            if not self.journals.exists(xid.gtrid):
                self.journals.close(self.journals.open(xid.gtrid))
        with self.journals.held_alone(xid.gtrid) as journal:
            if journal is None:
                raise LookAgain(f"{self.journals.shown(xid.gtrid)} was removed at this moment")
            known = self.journals.notes(xid.gtrid)
            for fact in (_DECIDED, {"xid": xid.joined, "reference": [[*reference.table], *reference[1:]]}):
                if fact not in known:
                    self.journals.note(journal, fact)
            yield journal

    # -- what is left -------------------------------------------------------------------------------------------

    def _clear(self, gtrid: str, ended: Mapping[tuple[str, str], tuple[TableMetadata | None, int]]) -> None:
        """Remove what the transaction has made and no snapshot names, and its journals, after its end.

        Nothing if the journal has a reference that is not among these, by its name and its table: that may be there.
        """
        with self.journals.held_alone(gtrid) as journal:
            if journal is not None and all((name, each.uuid) in ended for name, each in self._noted(gtrid)):
                self.journals.clear_but(gtrid, self._named(ended.values()), journal)

    def _named(self, tables: Iterable[tuple[TableMetadata | None, int]]) -> set[str]:
        files = self.journals.reader()
        return {
            self.journals.located(each)
            for metadata, since in tables
            if metadata is not None
            for each in named_files(metadata, since, files)
        }

    def sweep(self, gtrid: str) -> None:
        """Remove what a transaction has left that can never commit, but for what a snapshot names.

        OperationalError if it is prepared, if its process still works, or if a table changes or does not answer.
        """
        with self.journals.held_alone(gtrid, sweeping=True) as journal:
            if journal is None:
                return
            found = []
            for name, reference in self._noted(gtrid):
                try:
                    table = self.client.table_of(reference)
                except TableGone:
                    if self._is_gone_for_good(reference):
                        continue
                    raise
                # It changes nothing, and says so only if the reference is not there: no copy that a cache has kept.
                main = table.metadata.current_snapshot_id
                absent = {name: None, MAIN_BRANCH: main}
                now = self.committed(table, absent, drops(name))
                found.append((now, reference.since))
            # What has no note may be published, too: a restore may have brought a journal back as it was before.
            kept = named_by((each.metadata for each in self.client.tables()), self.journals)
            self.journals.clear_but(gtrid, kept | self._named(found), journal)


def _parsed(name: str) -> Xid:
    found = parse(name)
    if found is None:
        raise OperationalError(f"{name} is no name of a branch")
    return found
