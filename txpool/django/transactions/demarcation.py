"""Where transactions begin and end, for the connection of one alias: what Django's `atomic` asks and tells it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any
from weakref import ref

from django.db import DEFAULT_DB_ALIAS
from django.db.backends.utils import debug_transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import NotSupportedError

from txpool.django.transactions.aliases import Aliases, elsewhere
from txpool.django.transactions.blocks import Blocks, Savepoints
from txpool.django.transactions.failures import as_djangos
from txpool.errors import TransactionRolledBack
from txpool.tm.ambient import ambient_variable, current, make_ambient
from txpool.tm.completion.dropped import roll_back_abandoned
from txpool.tm.completion.outcome import rolled_back
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import get_manager
from txpool.tm.rules.extent import Extent, extent_of, is_over

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

    _Base = Any
else:
    _Base = object


class _Undone(Exception):
    """Django undoes a block without an exception."""


class Demarcation(_Base):
    """Which transaction an alias is in, and what it does of that.

    The alias is outside of any transaction; or it has begun one (`_begun`); or it has joined one, ambient here, which
    another alias or `txpool.transaction()` has begun. `_within` refers to that transaction for as long as anything of
    it is kept here: a connection, blocks, functions of on_commit(). It is noticed late that it has ended, in the
    alias's own thread: see `_sync`.
    """

    #: The handle; None if there is none now.
    connection: Any

    def __init__(self, settings_dict: dict[str, Any], alias: str = DEFAULT_DB_ALIAS) -> None:
        self._pid = os.getpid()
        self._begun: transaction | None = None
        self._within: ref[Transaction] | None = None
        #: Its block ends the transaction at this moment.
        self._completing = False
        self._in_atomic_block = False
        #: Where the outermost block is.
        self._extent: Extent | None = None
        #: A block is open whose transaction has ended.
        self._outlived = False
        #: The connection was taken in `_within`, and ends with that.
        self._inside = False
        #: set_rollback(True) was called: who did so knows that nothing is kept.
        self._undo_asked = False
        #: The outermost block has rolled back, and its program knows of nothing.
        self._untold: TransactionRolledBack | None = None
        #: Savepoints that are opened before the alias's first statement in the transaction.
        self._pending: list[str] = []
        super().__init__(settings_dict, alias)

    # -- which transaction --------------------------------------------------------------------------------------

    def _sync(self) -> Transaction | None:
        """The transaction in which a statement would be now; the alias joins it. None if there is none.

        What is left of an earlier one is forgotten. TransactionManagementError if the alias is in another.
        """
        if self._pid != os.getpid():
            self._forget_parents()
        here = current()
        if self._within is not None and not self._completing:
            within = self._within()
            if within is None or within.ended or within.abandoned:
                if self._has_outlived():
                    return None
                self._leave()
            elif within is not here:
                raise elsewhere(self.alias, within.gtrid, here)
            else:
                return within
        if here is not None and self._within is None and not here.ended:
            self._join(here)
        return here

    def _forget_parents(self) -> None:
        """In a forked child: what is here is the parent's, but for a block, which the child may be in, too."""
        self._pid = os.getpid()
        self.connection = None
        self._inside = False
        if not self._in_atomic_block:
            self._leave()

    def _join(self, here: Transaction) -> None:
        if here.in_loop:
            raise NotSupportedError(
                f"alias {self.alias!r} cannot join {here.gtrid}, which a task of an event loop has begun: Django's "
                "connections belong to threads, which tasks share. Nothing was done. Begin it by atomic() in the "
                "function that sync_to_async() calls, or work there with txpool.connect()."
            )
        if self.connection is not None and not self._inside and not self.autocommit:
            raise TransactionManagementError(
                f"alias {self.alias!r} cannot join {here.gtrid}: set_autocommit(False), or a change of SQLite's "
                "schema, has begun work of its own. Nothing was done. End that first."
            )
        self._within = ref(here)
        Aliases.of(here).add(self)

    def _leave(self) -> None:
        """Forget what was of a transaction that has ended."""
        if self._begun is not None:
            self._abandon(self._begun)
        self._in_atomic_block = self._outlived = False
        self.savepoint_ids, self.atomic_blocks, self._pending = [], [], []
        self.commit_on_exit, self.needs_rollback, self.closed_in_transaction = True, False, False
        self.run_on_commit: list[Any] = []
        self.run_commit_hooks_on_set_autocommit_on = False
        if self._inside:
            self._drop_connection()
        # Last: if an interrupt comes before, all is done again.
        self._begun = self._extent = self._within = None

    def _abandon(self, block: transaction) -> None:
        """Have its transaction rolled back, if an interrupt has kept it from its end."""
        begun = block.entered_transaction
        if not (begun.ended or begun.abandoned):
            block.__exit__(GeneratorExit, GeneratorExit(), None)

    def _has_outlived(self) -> bool:
        """Whether a block of this alias is open whose transaction, which has ended, was another's to end."""
        if not self._outlived and self._begun is None and self._in_atomic_block:
            self._outlived = self.closed_in_transaction = self.needs_rollback = True
            self._drop_connection()
        if self._outlived and self._extent is not None and is_over(self._extent):
            return False
        return self._outlived

    @property
    def has_begun(self) -> bool:
        """Whether the transaction ends with this alias's outermost block, or there is none."""
        return self._begun is not None or self._within is None

    def is_within_another(self) -> bool:
        """Whether a block that is entered now would not commit, though no block of this alias's own is the reason."""
        here = self._sync()
        if here is None:
            return False
        aliases = Aliases.of(here)
        if not aliases.begun_by_django:
            return True
        # Django's TestCase has blocks around everything, in which durable ones are allowed.
        return not all(
            block._from_testcase for each in aliases if each is not self for block in list(each.atomic_blocks)
        )

    # -- what Django's Atomic reads and sets --------------------------------------------------------------------

    @property
    def in_atomic_block(self) -> bool:
        """Whether a block of this alias is open. One that an interrupt has kept from its end is not."""
        if self._in_atomic_block and self._within is not None and not self._completing:
            current()  # finds that the block is over, and rolls back
            within = self._within()
            if (within is None or within.ended or within.abandoned) and not self._has_outlived():
                self._leave()
        return self._in_atomic_block

    @in_atomic_block.setter
    def in_atomic_block(self, inside: bool) -> None:
        if inside:  # where the block is first: an interrupt finds it left
            entering = sys._getframe(1).f_back  # of what calls Atomic.__enter__
            self._extent = None if entering is None else extent_of(entering, entering.f_lasti)
            if self._begun is not None:
                self._begun.entered_transaction.extent = self._extent
        self._in_atomic_block = inside
        if not inside and self._begun is not None and self.closed_in_transaction:
            self._closed_by_its_block()

    @property
    def savepoint_ids(self) -> Savepoints:
        return self._savepoints

    @savepoint_ids.setter
    def savepoint_ids(self, sids: list[Any]) -> None:
        self._savepoints = Savepoints(self)
        self._savepoints.extend(sids)

    @property
    def atomic_blocks(self) -> Blocks:
        return self._blocks

    @atomic_blocks.setter
    def atomic_blocks(self, blocks: list[Any]) -> None:
        self._blocks = Blocks(self)
        self._blocks.extend(blocks)

    def outermost_left(self) -> None:
        """The outermost block of an alias that has joined is left. An error if its transaction has ended before."""
        if self.closed_in_transaction and self._begun is None:
            self._in_atomic_block = False  # Django leaves that to the next connection
        if self._outlived:
            self._leave()
            if sys.exc_info()[1] is None:
                raise TransactionManagementError(
                    f"the atomic block of alias {self.alias!r} has outlived the transaction around it: what was done "
                    "in the block has rolled back. Leave it before the block that has begun the transaction."
                )

    def require_left(self) -> None:
        """Before the transaction commits: TransactionManagementError if a block of this alias is open."""
        if self._in_atomic_block and not self._completing:
            raise TransactionManagementError(f"an atomic block of alias {self.alias!r} has not been left")

    def get_autocommit(self) -> bool:
        if self._begun is not None and not self._in_atomic_block and not self._completing:
            self._leave()  # an interrupt came as the block was entered or left
        if self._sync() is not None or self._outlived:
            return False
        return self.connection is None or bool(self.autocommit)

    def set_autocommit(self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False) -> None:
        begins = force_begin_transaction_with_broken_autocommit and not autocommit
        self.validate_no_atomic_block()
        if self._begun is not None and autocommit:
            self._left()
        elif (here := self._sync()) is not None:
            raise TransactionManagementError(
                f"set_autocommit() of alias {self.alias!r} in {here.gtrid}: that ends what is done in it. Nothing was "
                "done"
            )
        elif begins and self._begins_here():
            self._begin()
        else:
            super().set_autocommit(autocommit, force_begin_transaction_with_broken_autocommit)

    def _begins_here(self) -> bool:
        return True

    # -- its beginning and its end ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.validate_thread_sharing()
        with debug_transaction(self, "BEGIN"):
            self.datasource
            begun = get_manager().new_transaction()
            aliases = Aliases.of(begun)
            aliases.begun_by_django = True
            aliases.add(self)
            entering = sys._getframe(2).f_back
            if entering is not None:
                begun.origin = entering.f_code, entering.f_lasti
            try:
                self._within = ref(begun)
                self._begun = transaction.entered(begun)
            except BaseException:  # an interrupt: no block would end it
                if self._begun is None:
                    self._within = None
                    if ambient_variable.get() is begun:
                        make_ambient(None)
                    roll_back_abandoned(begun)
                raise
        self.errors_occurred = self._undo_asked = False
        self._untold = self.rollback_exc = None

    def _end(self, error: BaseException | None) -> None:
        block: Any = self._begun
        ended, self._completing = block.entered_transaction, True
        try:
            with debug_transaction(self, "COMMIT" if error is None else "ROLLBACK"):
                block.__exit__(None if error is None else type(error), error, None)
        except TransactionRolledBack as failure:
            raise as_djangos(failure)  # noqa: B904 - it has its cause
        except BaseException as failure:
            if not isinstance(failure, Exception):
                Aliases.of(ended).drop_hooks()
            raise
        finally:
            self._completing = False

    def _left(self) -> None:
        """The outermost block of the alias that has begun the transaction is left."""
        begun: Any = self._begun
        aliases, run = Aliases.of(begun.entered_transaction), self.run_commit_hooks_on_set_autocommit_on
        self._leave()
        if run:
            aliases.run_hooks()
        if self._untold is not None:
            raise as_djangos(self._untold)

    def set_rollback(self, rollback: bool) -> None:
        super().set_rollback(rollback)
        self._undo_asked = rollback

    def _closed_by_its_block(self) -> None:
        """close() was called within the block: Django takes it for rolled back, and ends nothing."""
        error = sys.exc_info()[1]
        self._end(error or _Undone())
        self._leave()
        if error is None:
            raise TransactionManagementError(
                f"alias {self.alias!r} was closed within its atomic block: what was done in the transaction has rolled "
                "back"
            )

    def _commit(self) -> None:
        if self._begun is not None:
            self._end(None)
        else:
            self._require_outside("commit")
            super()._commit()

    def _rollback(self) -> None:
        if self._begun is not None:
            begun, error = self._begun.entered_transaction, sys.exc_info()[1]
            if begun.ended:
                return
            if error is None and not self._undo_asked and len(begun.datasources) > 1:
                # Of one database Django's own backends do so in silence, too.
                self._untold = rolled_back(begun.gtrid, f"an error within atomic() of alias {self.alias!r} was caught")
                self._untold.__cause__ = self.rollback_exc
            self._end(error or _Undone())
        else:
            self._require_outside("rollback")
            super()._rollback()

    def _require_outside(self, command: str) -> None:
        here = self._sync()
        if here is not None:
            raise TransactionManagementError(
                f"{command}() of alias {self.alias!r} in {here.gtrid}: its work ends with that. Nothing was done. "
                "Leave the block to commit, raise to roll back."
            )
