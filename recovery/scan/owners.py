"""Whose branch it is: a name is a claim that anybody who may prepare can make, so a branch counts by its owner.

It counts where its owner is the login role that a note in the log gives for this node and database, the one that the
datasource's own sessions have, or a role that either is a member of. Where recovery has a user of its own, incarnations
of before there were notes go by the configured user. What a decision names counts whoever owns it: `evidence` adds
that, once the decisions are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from recovery.scan.datasources import ListedBranch
from recovery.scan.report import describe_error
from txpool.log.locations import LocationNote


class BranchOwners:
    """The login roles that count, by node and database. `logins` tells the configured user's, and may ask for it."""

    def __init__(
        self,
        notes: Iterable[LocationNote],
        noting_incarnations: Collection[str],
        logins: Callable[[str], Collection[str]],
    ) -> None:
        self._notes = tuple(notes)
        self._noting_incarnations = noting_incarnations
        self._logins = logins
        self._noted: dict[tuple[str, str, str], frozenset[str]] = {}
        self._configured: dict[str, Collection[str]] = {}
        #: Whose configured user could not be asked for, and why.
        self.failed: dict[str, str] = {}

    def is_ours(self, branch: ListedBranch) -> bool:
        """Whether the server says that its owner is one of ours."""
        if branch.prepared_by(self._noted_roles(branch)):
            return True
        legacy = branch.xid.incarnation not in self._noting_incarnations
        return legacy and branch.prepared_by(self._configured_logins(branch.datasource))

    def _noted_roles(self, branch: ListedBranch) -> frozenset[str]:
        """The roles that the node of a branch has noted for the database that it is in."""
        place = branch.xid.node, branch.identity, branch.datasource
        found = self._noted.get(place)
        if found is None:
            notes = (note for note in self._notes if note.node == place[0] and note.is_of(*place[1:]))
            found = self._noted[place] = frozenset(note.location.role for note in notes)
        return found

    def _configured_logins(self, datasource: str) -> Collection[str]:
        if datasource not in self._configured:
            try:
                self._configured[datasource] = self._logins(datasource)
            except Exception as error:
                self._configured[datasource] = ()
                self.failed[datasource] = describe_error(error)
        return self._configured[datasource]
