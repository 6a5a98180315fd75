"""BranchOwners: whether a branch is ours, judged by the role that prepared it.

The name of a branch proves nothing, since anybody who may prepare can choose it. A branch is ours if its owner is one
of our login roles, or a role that one of them is a member of. Our login roles are those that the log's notes give for
the branch's node and database, and the one that the datasource's own sessions have. If recovery has a user of its own,
the configured user counts for incarnations that are older than the notes. A branch that a decision names belongs to its
transaction whoever owns it: `Snapshot.is_believed` adds that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from recovery.scan.datasources.datasources import ListedBranch
from txpool.config.secrets import describe_error
from txpool.log.locations import LocationNote


class BranchOwners:
    """Our login roles by node and database. `logins` gives those of a datasource's configured user, and may ask for
    them. Used by one thread.
    """

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
        #: The datasources whose configured login roles could not be asked for, with the errors.
        self.failed: dict[str, str] = {}

    def is_ours(self, branch: ListedBranch) -> bool:
        """Whether the server says that the owner of a branch is one of our roles."""
        if branch.prepared_by(self._noted_roles(branch)):
            return True
        is_older_than_notes = branch.named.incarnation not in self._noting_incarnations
        return is_older_than_notes and branch.prepared_by(self._configured_logins(branch.datasource))

    def _noted_roles(self, branch: ListedBranch) -> frozenset[str]:
        """The login roles that the node of a branch has noted for its database."""
        key = branch.named.node, branch.identity, branch.datasource
        found = self._noted.get(key)
        if found is None:
            notes = (note for note in self._notes if note.node == key[0] and note.is_of(*key[1:]))
            found = self._noted[key] = frozenset(note.location.role for note in notes)
        return found

    def _configured_logins(self, datasource: str) -> Collection[str]:
        if datasource not in self._configured:
            try:
                self._configured[datasource] = self._logins(datasource)
            except Exception as error:
                self._configured[datasource] = ()
                self.failed[datasource] = describe_error(error)
        return self._configured[datasource]
