"""The DB-API connection that users hold: a handle on a physical connection of the pool.

A handle is in one of these states::

    plain      it has a physical connection of its own, and behaves as the driver's own connection does
    enlisted   it shares the physical connection of a transaction, and belongs to that transaction until its end
    detached   it was taken outside a transaction, joined one, and that has ended: plain again, or in the next
               transaction, at its next use
    closed     by close(), or, where it was taken inside a transaction, by that transaction's end

What belongs to one driver is in `txpool.handles`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from txpool import errors
from txpool.dbapi.cursor import Cursor
from txpool.dbapi.enlistment import refuse_end
from txpool.dbapi.overrides import HandleState, SessionOverrides
from txpool.errors import InterfaceError, NotSupportedError, ProgrammingError, translate, translated
from txpool.pool import Pooled
from txpool.tm.manager import ambient as ambient_transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.dbapi.enlistment import Enlistment
    from txpool.tm.transaction import Transaction


class Connection:
    """A PEP 249 connection. Inside a transaction its statements are part of that, and only the transaction ends them.

    Enlisted, it may be used by several threads, which are serialised; plain, as its driver allows. Its errors are
    instances of the driver's classes and of ours. What PEP 249 does not know is the driver's own.
    """

    # Read and written by every connect() and close(): each one more costs.
    __slots__ = ("__weakref__", "_datasource", "_enlistment", "_pooled", "_state")

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

    _cursor_class: ClassVar[type[Cursor]] = Cursor
    #: The class whose instance a handle passes for.
    _driver_class: ClassVar[type] = object
    #: Attributes that say how the next local transaction begins.
    _MODES: ClassVar[frozenset[str]] = frozenset()
    #: Methods that another thread calls while the connection executes.
    _FREE: ClassVar[frozenset[str]] = frozenset()
    #: Methods that execute something.
    _EXECUTING: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, datasource: DataSource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        self._datasource: DataSource | None = datasource
        self._pooled = pooled
        self._enlistment = enlistment
        self._state: HandleState | None = None

    # -- PEP 249 ------------------------------------------------------------------------------------------------

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor; the arguments are the driver's own."""
        return self._cursor_class(self, args, kwargs)

    def commit(self) -> None:
        """Plain: as the driver's. In a transaction: ProgrammingError, or with managed.commit=join keep what it did."""
        enlistment, pooled = self._end_of_work()
        if enlistment is not None:
            enlistment.commit(self)
            return
        ambient = ambient_transaction()
        if pooled is not None and (ambient is None or self._has_work(pooled.raw)):
            try:
                pooled.raw.commit()
            except Exception as error:
                translate(error)
                raise
        elif ambient is not None:
            ambient.require_active()
            datasource = self._open_datasource()
            if datasource.settings.managed_commit != "join":
                raise refuse_end("commit", datasource, ambient.gtrid)

    def rollback(self) -> None:
        """Plain: as the driver's. Enlisted: ProgrammingError, or with managed.commit=join undo what it did.

        It never joins a transaction: finalisers call it, wherever they strike.
        """
        enlistment = self._enlistment
        if enlistment is not None and enlistment.ended and enlistment.savepoints is not None:
            return  # the transaction's end has ended what it did
        enlistment, pooled = self._end_of_work()
        if enlistment is not None:
            enlistment.rollback(self)
        elif pooled is not None and self._has_work(pooled.raw):
            try:
                pooled.raw.rollback()
            except Exception as error:
                translate(error)
                raise

    def close(self) -> None:
        """Give the physical connection back: now, or, enlisted, at the transaction's end. Open work is rolled back."""
        pooled = self._pooled
        datasource, self._datasource = self._datasource, None
        if pooled is not None:
            self._pooled = None
            if self._state is not None and pooled.pool_state is not None:
                self._state.restore()
            datasource.pool.give_back(pooled)  # type: ignore[union-attr]
        elif self._enlistment is not None:
            self._enlistment.close(self)
            self._enlistment = None

    def _no_tpc(self, *_: Any, **__: Any) -> NoReturn:
        raise NotSupportedError("txpool.transaction() prepares and commits by itself: tpc_*() has no place beside it")

    tpc_begin = tpc_prepare = tpc_commit = tpc_rollback = tpc_recover = _no_tpc

    @property
    def paramstyle(self) -> str:
        """The driver's own; statements are not translated."""
        return str(self._open_datasource().driver_adapter.module.paramstyle)

    def __enter__(self) -> Self:
        self._open_datasource()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Plain: as the driver's. Enlisted: closed, nothing else."""
        if self._pooled is not None:
            self._leave_block(failed=kind is not None)
        else:
            self.close()

    def _leave_block(self, *, failed: bool) -> None:
        if failed:
            self.rollback()
        else:
            self.commit()

    # -- beyond it ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after close(), after the end of the transaction in which it was taken, or where it is broken."""
        if self._pooled is not None:
            return bool(getattr(self._pooled.raw, "closed", False))
        if self._enlistment is not None:
            return self._enlistment.ended and not (self._state and self._state.joined)
        return self._datasource is None

    @property
    def datasource(self) -> DataSource:
        return self._open_datasource()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver they have before them.
        return self._driver_class

    def __repr__(self) -> str:
        name = "" if self._datasource is None else f" to {self._datasource.name}"
        if self._pooled is not None:
            state = "plain"
        elif self._enlistment is not None and not self._enlistment.ended:
            state = f"enlisted in {self._enlistment.gtrid}"
        else:
            state = "closed" if self.closed else "detached"
        return f"<txpool connection{name}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection cannot travel to another process: send its datasource, and connect() there")

    def __del__(self) -> None:
        pooled = self._pooled
        # None: it is the parent's, which a forked child leaves alone.
        if pooled is not None and pooled.pool_state is not None:
            # The pool closes it: whoever dropped it may have left anything on it.
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (not hasattr(self._driver_class, name) and self._datasource is None):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        value = getattr(self._raw(), name)
        if not callable(value) or name.startswith("_") or name in self._FREE:
            return value
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    if TYPE_CHECKING:
        # For who checks types: connect() returns any driver's handle, with that driver's own attributes to set.
        def __setattr__(self, name: str, value: Any) -> None: ...

    # -- for cursors, attributes and drivers --------------------------------------------------------------------

    def _working(self) -> Enlistment | None:
        """The enlistment to work in here and now, None where it is plain; joins an ambient transaction."""
        ambient = ambient_transaction()
        enlistment = self._enlistment
        if enlistment is None:
            if ambient is not None:
                return self._join(ambient)
            if self._pooled is None:
                self._attach()
            elif self._pooled.pool_state is None:
                raise self._refuse_after_fork()
            return None
        if enlistment.owner() is not ambient or enlistment.ended:
            if enlistment.ended:
                self._require_open()
                self._enlistment = None
                return self._working()
            enlistment.require_here(ambient)
        return enlistment

    def _join(self, transaction: Transaction) -> Enlistment:
        datasource = self._open_datasource()
        transaction.require_active()
        pooled = self._pooled
        if pooled is not None:
            if pooled.pool_state is None:
                raise self._refuse_after_fork()
            if self._has_work(pooled.raw):
                raise ProgrammingError(
                    f"this connection of {datasource.name} cannot join {transaction.gtrid}: it has open work of its "
                    "own from before. commit() or rollback() it first. Nothing was done."
                )
            # First of all, since the transaction may need the very place in the pool.
            self._detach(pooled)
        self._own_state().joined = True
        enlistment: Enlistment = transaction.enlist(datasource)
        with enlistment.entered(self):
            self._carry_modes(enlistment.raw, self._own_state().modes)
        self._enlistment = enlistment
        return enlistment

    def _detach(self, pooled: Pooled[Any]) -> None:
        self._pooled = None
        self._own_state().restore()
        self._open_datasource().pool.give_back(pooled)

    def _attach(self) -> None:
        """Become plain: with a physical connection of its own, and what was set on it before."""
        pooled = self._open_datasource().pool.take()
        self._pooled = pooled
        own = self._own_state()
        for name, value in own.modes.items():
            setattr(pooled.raw, name, value)
        self._apply_overrides().apply(own.attributes)

    def _end_of_work(self) -> tuple[Enlistment | None, Pooled[Any] | None]:
        """Where there is something to commit or to roll back: in a transaction, in a connection of its own, nowhere.

        Unlike `_working`, it takes and joins nothing.
        """
        self._require_open()
        enlistment, pooled = self._enlistment, self._pooled
        if enlistment is None or enlistment.ended:
            if pooled is not None and pooled.pool_state is None:
                raise self._refuse_after_fork()
            return None, pooled
        ambient = ambient_transaction()
        if enlistment.owner() is not ambient:
            enlistment.require_here(ambient)
        return enlistment, None

    def _own_state(self) -> HandleState:
        if self._state is None:
            self._state = HandleState()
        return self._state

    def _apply_overrides(self) -> SessionOverrides:
        """Of a plain handle. The pool resets what is not put back by itself."""
        own = self._own_state()
        pooled = self._pooled
        if own.overrides is None:
            own.overrides = SessionOverrides(pooled.raw)  # type: ignore[union-attr]
        pooled.dirty = True  # type: ignore[union-attr]
        return own.overrides

    def _get(self, name: str) -> Any:
        own = self._state
        if own is not None and name in own.attributes:
            return own.attributes[name]
        return getattr(self._raw(), name)

    def _set(self, name: str, value: Any) -> None:
        enlistment = self._working()
        own = self._own_state()
        if name in self._MODES:
            if enlistment is not None:
                with enlistment.entered(self):
                    self._set_mode(enlistment.raw, name, value)
            else:
                self._apply_overrides()
                with translated():
                    setattr(self._pooled.raw, name, value)  # type: ignore[union-attr]
                own.modes = {**own.modes, name: value}
            return
        attributes: Mapping[str, Any] = {**own.attributes, name: value}
        if enlistment is None:
            with translated():
                self._apply_overrides().apply(attributes)
        own.attributes = attributes

    def _set_mode(self, raw: Any, name: str, value: Any) -> None:
        """Set on an enlisted connection how its local transaction begins; the transaction's own way is the only one."""
        if value != getattr(raw, name):
            raise ProgrammingError(
                f"{name} cannot be {value!r} on a connection that a transaction owns: leave it, and set it on "
                "connections outside. Nothing was done."
            )

    def _carry_modes(self, raw: Any, modes: Mapping[str, Any]) -> None:
        """Joining: what was set on this handle of how local transactions begin, and the transaction's can obey."""

    def _call(self, name: str, args: Any, kwargs: Any) -> Any:
        enlistment = self._working()
        if enlistment is None:
            pooled = self._pooled
            pooled.dirty = True  # type: ignore[union-attr]
            with translated():
                return getattr(pooled.raw, name)(*args, **kwargs)  # type: ignore[union-attr]
        around = enlistment.started if name in self._EXECUTING else enlistment.entered
        with around(self):
            return getattr(enlistment.raw, name)(*args, **kwargs)

    def _works_on(self) -> Pooled[Any] | Enlistment | None:
        """What cursors and blocks that were made now belong to."""
        return self._pooled or self._enlistment

    def _raw(self) -> Any:
        """The raw connection, to read from it."""
        self._require_open()
        if self._pooled is None and (self._enlistment is None or self._enlistment.ended):
            self._working()
        home: Any = self._works_on()
        if home.pool_state is None:
            raise self._refuse_after_fork()
        return home.raw

    def _has_work(self, raw: Any) -> bool:
        """Whether a local transaction is open; no I/O."""
        return self._open_datasource().driver_adapter.dialect.in_transaction(raw)

    def _open_datasource(self) -> DataSource:
        self._require_open()
        return self._datasource  # type: ignore[return-value]

    def _refuse_after_fork(self) -> errors.InterfaceError:
        """What is heard after a fork where the pool has marked the physical connection as the parent's."""
        return InterfaceError(
            f"this connection of {self._open_datasource().name} is the parent process's, which goes on with it: "
            "connect() in this process. Nothing was sent."
        )

    def _require_open(self) -> None:
        if self._datasource is None:
            raise InterfaceError("this connection is closed: take another by connect()")
        enlistment = self._enlistment
        if enlistment is not None and enlistment.ended and not (self._state and self._state.joined):
            raise InterfaceError(
                f"this connection of {self._datasource.name} was taken inside {enlistment.gtrid}, which "
                f"has ended ({enlistment.how_it_ended}): take another by connect(). Nothing was done."
            )
