"""The DB-API connection that users hold: a handle on a physical connection of the pool, see `txpool.dbapi.handle`.

Each driver has subclasses of Connection and Cursor, in `txpool/resources/<database>/handle.py`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from txpool import errors
from txpool.dbapi import managed_commit
from txpool.dbapi.cursor import Cursor, PEP249Cursor
from txpool.dbapi.refusals import end_refused
from txpool.dbapi.two_phase import TwoPhaseHandle
from txpool.errors import translate
from txpool.tm.ambient import ambient as ambient_transaction

if TYPE_CHECKING:
    from txpool.dbapi.statements import PooledDatasource


class PEP249Connection(TwoPhaseHandle):
    """A PEP 249 connection. Inside a transaction its statements are part of that, and only the transaction ends them.

    Enlisted, it may be used by several threads, which are serialised; plain, as its driver allows. Its errors are
    instances of the driver's classes and of ours. Attributes beyond PEP 249 are the driver's own, without a
    `__getattr__`: see `txpool.dbapi.driver_attributes`. `pooled`, `enlistment`, `handle_state`, `required` and the
    methods below "for cursors" are for this package.
    """

    __slots__ = ()

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    _cursor_class: ClassVar[type[PEP249Cursor]] = Cursor

    @classmethod
    def handle_modules(cls) -> set[str]:
        """The modules of its classes, and of its cursor's: those between a statement and the code that executes it."""
        classes = (*cls.__mro__, *cls._cursor_class.__mro__)
        return {each.__module__ for each in classes if each is not object}

    # -- PEP 249 ------------------------------------------------------------------------------------------------

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor; the arguments are the driver's own."""
        return self._cursor_class(self, args, kwargs)

    def commit(self) -> None:
        """Plain: as the driver's. In a transaction: ProgrammingError; if it joins commits, keep its work."""
        enlistment, pooled = self._uncommitted_in()
        if enlistment is not None:
            managed_commit.commit(enlistment, self)
            return
        ambient = ambient_transaction()
        if pooled is not None and (ambient is None or self.has_work(pooled.raw)):
            try:
                pooled.since = monotonic()
                pooled.raw.commit()
            except Exception as error:
                translate(error)
                raise
            finally:
                pooled.since = 0.0
        elif ambient is not None:
            ambient.require_active()
            if not self.joins_commits:
                raise end_refused("commit", self._open_datasource().name, ambient.gtrid)

    def rollback(self) -> None:
        """Plain: as the driver's. Enlisted: ProgrammingError; if it joins commits, undo its work.

        It never joins a transaction, since finalisers call it, which may run anywhere.
        """
        enlistment = self.enlistment
        if enlistment is not None and enlistment.ended and self.joins_commits:
            return  # the transaction's end has committed or undone its work
        enlistment, pooled = self._uncommitted_in()
        if enlistment is not None:
            managed_commit.rollback(enlistment, self)
        elif pooled is not None and (self.has_work(pooled.raw) or self.closed):
            try:
                pooled.raw.rollback()
            except Exception as error:
                translate(error)
                raise

    def close(self) -> None:
        """Give the physical connection back: now, or, enlisted, at the transaction's end. Open work is rolled back."""
        pooled, enlistment = self.pooled, self.enlistment
        if pooled is not None:
            datasource, self._datasource = self._datasource, None
            self.pooled = None
            if pooled.pool_state is not None:
                self._before_give_back(pooled, datasource)  # type: ignore[arg-type]
            datasource.pool.give_back(pooled)  # type: ignore[union-attr]
            return
        self._datasource = None
        if enlistment is not None:
            if enlistment.savepoints is not None and not enlistment.ended:
                enlistment.savepoints.close(self)  # its work stays in the transaction
            self.enlistment = None

    @property
    def paramstyle(self) -> str:
        """The driver's own; statements are not translated."""
        return str(self._open_datasource().driver_adapter.module.paramstyle)

    def __enter__(self) -> Self:
        enlistment = self.enlistment
        if enlistment is None or enlistment.ended:
            self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Plain: as the driver's. Enlisted: closed, nothing else."""
        if self.pooled is not None:
            self._leave_block(failed=kind is not None)
        else:
            self.close()

    def _leave_block(self, *, failed: bool) -> None:
        if failed:
            self.rollback()
        else:
            self.commit()

    # -- beyond PEP 249 -----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after close(), after the end of the transaction in which it was taken, or if it is broken."""
        if self.pooled is not None:
            return bool(getattr(self.pooled.raw, "closed", False))
        return self._why_closed() is not None

    @property
    def datasource(self) -> PooledDatasource:
        """The datasource that it was taken from. InterfaceError once it is closed."""
        return self._open_datasource()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver a connection is of.
        return self._driver_class

    def __repr__(self) -> str:
        name = "" if self._datasource is None else f" to {self._datasource.name}"
        if self.pooled is not None:
            state = f"plain{self._open_two_phase()}"
        elif self.enlistment is not None and not self.enlistment.ended:
            state = f"enlisted in {self.enlistment.gtrid}"
        else:
            state = "closed" if self.closed else "detached"
        return f"<txpool connection{name}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection cannot travel to another process: send its datasource, and connect() there")

    def __del__(self, program_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            pooled = self.pooled
        except AttributeError:  # an interrupt came before it was made
            return
        # Without a pool state it belongs to the parent process: a forked child leaves it alone.
        if pooled is not None and pooled.pool_state is not None:
            # The pool closes the physical connection, whose state is unknown.
            try:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            except (AttributeError, TypeError):
                if not program_ends():  # the modules may have no names any more
                    raise


class Connection(PEP249Connection):
    """A connection whose attributes beyond PEP 249 are whatever its driver's has."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self.driver_attribute(name)
