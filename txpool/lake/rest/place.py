"""A REST catalog and the warehouse of its tables: whose they are, how the server is asked, conditional commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from pyiceberg.exceptions import BadRequestError, CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from requests import RequestException

from txpool.errors import OperationalError, described
from txpool.lake.journals.kinds import journals_of
from txpool.lake.rest.client import RestClient, properties_of
from txpool.lake.rest.snapshots import COUNTS, Proof, leads, requires
from txpool.resources.own.resource import Resource

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from txpool.config.settings import DataSourceSettings

T = TypeVar("T")

GENERATION: Final = "generation"
#: How often a conditional commit is tried if others commit, or the answer is lost.
_TRIES: Final = 20
#: After these the commit may have landed, also after a 409: its first try may have, whose answer was lost.
_LOOK_AGAIN: Final = (BadRequestError, CommitFailedException, CommitStateUnknownException, RequestException)
#: What the warehouse says that it belongs to, in place of a catalog's token.
_BOUND: Final = "rest"


class LookAgain(OperationalError):
    """A conditional commit that has failed, since others have committed, or of which nobody knows."""


def looking_again(work: Callable[[], T]) -> T:
    """Do work that begins with a look at a table, until its commit is answered. OperationalError if it never is."""
    for _ in range(_TRIES - 1):
        with suppress(LookAgain):
            return work()
    return work()


class RestPlace(Resource):
    """The tables of a REST catalog whose files are in one warehouse. Thread-safe. No I/O before its methods."""

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        super().__init__(settings.name)
        self.file = settings.file
        self.journals = journals_of(settings, recovery=recovery)
        self.settings, self._recovery = settings, recovery
        self._clients: dict[int, RestClient] = {}

    def properties(self) -> dict[str, Any]:
        """pyiceberg's properties of the catalog, secrets revealed: never log or keep them."""
        return properties_of(self.settings.catalog_uri or "", self.settings.connect_options(self._recovery))

    @property
    def client(self) -> RestClient:
        """The client of this process: a child of a fork uses no connection of its parent's."""
        found = self._clients.get(os.getpid())
        if found is None:
            found = self._clients.setdefault(
                os.getpid(), RestClient(self.name, self.journals.reader(), **self.properties())
            )
        return found

    # -- the place ----------------------------------------------------------------------------------------------

    def identity(self) -> str:
        """The warehouse's, which has to be one of REST catalogs' tables, with a key that is ours alone."""
        found = self.journals.identity()
        self.journals.key()
        if self.journals.binding(_BOUND) != _BOUND:
            raise self.settings.properties.error(
                "warehouse",
                f"is {self.journals.root}, which belongs to a catalog in a datasource: give each a place of its own. "
                "Nothing was done",
            )
        return found

    def generation(self) -> str:
        return self.journals.generation()

    @property
    def proof(self) -> Proof:
        """By which our snapshots are known."""
        return Proof(self.journals.key())

    def begin_table(self, table: Table) -> None:
        """Give an empty table its first snapshot, which is empty: until then it takes no reference but main.

        Its file is the table's own, and made once: also after a crash the commit may land that names it.
        """
        metadata = table.metadata
        number = UUID(str(metadata.table_uuid)).int % (2**62) + 1
        location = f"{metadata.location.rstrip('/')}/metadata/txpool-empty-{metadata.table_uuid}.avro"
        path = self.journals.inside(location)
        sequence = metadata.next_sequence_number()
        with TemporaryDirectory() as folder:
            draft = Path(folder, "draft.avro")
            output = PyArrowFileIO({}).new_output(str(draft))
            with write_manifest_list(metadata.format_version, output, number, None, sequence, "null"):
                pass
            self.journals.make_once(path, draft.read_bytes())
        totals = {each: "0" for each in sorted(COUNTS) if each.startswith("total-")}  # or none after it would have any
        empty = {
            "snapshot-id": number,
            "sequence-number": sequence,
            "manifest-list": location,
            "summary": {"operation": "append", **totals},
            "schema-id": metadata.current_schema_id,
        }
        added = AddSnapshotUpdate(snapshot=Snapshot.model_validate(empty))
        self.committed(table, {MAIN_BRANCH: None}, added, leads(MAIN_BRANCH, number))

    def committed(self, table: Table, references: Mapping[str, int | None], *updates: Any) -> TableMetadata:
        """The metadata after a conditional commit. LookAgain if it has failed, or may have."""
        # Not by pyiceberg's Transaction, which drops a second requirement of the same type.
        requirements = [requires(name, number) for name, number in references.items()]
        uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
        try:
            answer = self.client.commit_table(table, (uuid, *requirements), updates)
        except _LOOK_AGAIN as error:
            raise LookAgain(f"a commit of table {'.'.join(table.name())} has failed: {described(error)}") from error
        found: TableMetadata = answer.metadata
        return found
