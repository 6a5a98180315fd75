"""managed.commit = join: a handle's commit() and rollback() inside a transaction, by savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.dbapi.refusals import commit_in_block, end_refused, not_innermost
from txpool.dbapi.savepoints import NotInnermost, Savepoints
from txpool.errors import translated

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.dbapi.handle import Handle


def commit(enlistment: Enlistment, handle: Handle) -> None:
    """Keep what the handle has done since its last commit() or rollback(). Errors: ProgrammingError, the driver's."""
    savepoints = _savepoints(enlistment, "commit")
    with enlistment.entered(handle):
        savepoints.commit(handle)


def rollback(enlistment: Enlistment, handle: Handle) -> None:
    """Undo what the handle has done since its last commit() or rollback(). Errors: ProgrammingError, the driver's."""
    savepoints = _savepoints(enlistment, "rollback")
    with enlistment.lock:
        transaction = enlistment.owner()
        if transaction is None or not transaction.active:  # it rolls back as a whole, or has ended
            return
        try:
            with translated():
                savepoints.rollback(handle)
        except NotInnermost:
            error = not_innermost(enlistment.datasource.name, enlistment.gtrid)
            transaction.set_rollback_only(error)
            raise error from None


def _savepoints(enlistment: Enlistment, command: str) -> Savepoints:
    savepoints = enlistment.savepoints
    if savepoints is None:
        raise end_refused(command, enlistment.datasource, enlistment.gtrid)
    if savepoints.in_block:
        raise commit_in_block(command, enlistment.datasource.name, enlistment.gtrid)
    return savepoints
