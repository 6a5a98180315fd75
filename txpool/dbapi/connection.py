"""The DB-API connection that users hold: a handle on a physical connection of the pool.

A handle is in one of these states::

    plain      it has a physical connection of its own, and behaves as the driver's own connection does
    enlisted   it shares the physical connection of a transaction, and belongs to that transaction until its end
    detached   it was taken outside a transaction, joined one, and that has ended: its next use makes it plain, or
               enlists it in the transaction that is ambient then
    closed     by close(), or, where it was taken inside a transaction, by that transaction's end

Each driver has subclasses of Connection and Cursor, in `txpool/resources/<database>/handle.py`.
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
from txpool.tm.ambient import ambient as ambient_transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.dbapi.enlistment import Enlistment
    from txpool.tm.transaction import Transaction


class Connection:
    """A PEP 249 connection. Inside a transaction its statements are part of that, and only the transaction ends them.

    Enlisted, it may be used by several threads, which are serialised; plain, as its driver allows. Its errors are
    instances of the driver's classes and of ours. Attributes beyond PEP 249 are the driver's own. `pooled`,
    `enlistment`, `handle_state` and the methods below "for cursors" are for this package.
    """

    # Few, since every connect() and close() sets each of them.
    __slots__ = ("__weakref__", "_datasource", "enlistment", "handle_state", "pooled")

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
    #: The driver's class, of which isinstance() takes a handle for an instance.
    _driver_class: ClassVar[type] = object
    #: Attributes that say how the next local transaction begins.
    _MODES: ClassVar[frozenset[str]] = frozenset()
    #: Methods that another thread may call while the connection executes.
    _CONCURRENT: ClassVar[frozenset[str]] = frozenset()
    #: Methods that execute something.
    _EXECUTING: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, datasource: DataSource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        self._datasource: DataSource | None = datasource
        self.pooled = pooled
        self.enlistment = enlistment
        self.handle_state: HandleState | None = None

    # -- PEP 249 ------------------------------------------------------------------------------------------------

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor; the arguments are the driver's own."""
        return self._cursor_class(self, args, kwargs)

    def commit(self) -> None:
        """Plain: as the driver's. In a transaction: ProgrammingError; with managed.commit=join, keep its work."""
        enlistment, pooled = self._uncommitted_in()
        if enlistment is not None:
            enlistment.commit(self)
            return
        ambient = ambient_transaction()
        if pooled is not None and (ambient is None or self.has_work(pooled.raw)):
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
        """Plain: as the driver's. Enlisted: ProgrammingError; with managed.commit=join, undo its work.

        It never joins a transaction, since finalisers call it, which may run anywhere.
        """
        enlistment = self.enlistment
        if enlistment is not None and enlistment.ended and enlistment.savepoints is not None:
            return  # the transaction's end has committed or undone its work
        enlistment, pooled = self._uncommitted_in()
        if enlistment is not None:
            enlistment.rollback(self)
        elif pooled is not None and self.has_work(pooled.raw):
            try:
                pooled.raw.rollback()
            except Exception as error:
                translate(error)
                raise

    def close(self) -> None:
        """Give the physical connection back: now, or, enlisted, at the transaction's end. Open work is rolled back."""
        pooled = self.pooled
        datasource, self._datasource = self._datasource, None
        if pooled is not None:
            self.pooled = None
            if self.handle_state is not None and pooled.pool_state is not None:
                self.handle_state.restore()
            datasource.pool.give_back(pooled)  # type: ignore[union-attr]
        elif self.enlistment is not None:
            self.enlistment.close(self)
            self.enlistment = None

    def _no_tpc(self, *_: Any, **__: Any) -> NoReturn:
        raise NotSupportedError("tpc_*() is not supported: txpool.transaction() prepares and commits by itself")

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
        """True after close(), after the end of the transaction in which it was taken, or where it is broken."""
        if self.pooled is not None:
            return bool(getattr(self.pooled.raw, "closed", False))
        if self.enlistment is not None:
            return self.enlistment.ended and not (self.handle_state and self.handle_state.joined)
        return self._datasource is None

    @property
    def datasource(self) -> DataSource:
        """The datasource that it was taken from. InterfaceError once it is closed."""
        return self._open_datasource()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver a connection is of.
        return self._driver_class

    def __repr__(self) -> str:
        name = "" if self._datasource is None else f" to {self._datasource.name}"
        if self.pooled is not None:
            state = "plain"
        elif self.enlistment is not None and not self.enlistment.ended:
            state = f"enlisted in {self.enlistment.gtrid}"
        else:
            state = "closed" if self.closed else "detached"
        return f"<txpool connection{name}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection cannot travel to another process: send its datasource, and connect() there")

    def __del__(self) -> None:
        pooled = self.pooled
        # Without a pool state it belongs to the parent process: a forked child leaves it alone.
        if pooled is not None and pooled.pool_state is not None:
            # The pool closes the physical connection, whose state is unknown.
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (not hasattr(self._driver_class, name) and self._datasource is None):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        value = getattr(self.raw_connection(), name)
        if not callable(value) or name.startswith("_") or name in self._CONCURRENT:
            return value
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    if TYPE_CHECKING:
        # For type checkers: connect() returns any driver's handle, with that driver's own attributes to set.
        def __setattr__(self, name: str, value: Any) -> None: ...

    # -- for cursors, attributes and drivers --------------------------------------------------------------------

    def current_enlistment(self) -> Enlistment | None:
        """The enlistment that a statement must use now; None where the handle is plain. Joins an ambient transaction.

        Errors: InterfaceError where it is closed, or is the parent process's; ProgrammingError where it belongs to
        another transaction than the ambient one.
        """
        ambient = ambient_transaction()
        enlistment = self.enlistment
        if enlistment is None:
            if ambient is not None:
                return self._join(ambient)
            if self.pooled is None:
                self._attach()
            elif self.pooled.pool_state is None:
                raise self.after_fork_error()
            return None
        if enlistment.owner() is not ambient or enlistment.ended:
            if enlistment.ended:
                self.require_open()
                self.enlistment = None
                return self.current_enlistment()
            enlistment.require_here(ambient)
        return enlistment

    def _join(self, transaction: Transaction) -> Enlistment:
        datasource = self._open_datasource()
        transaction.require_active()
        pooled = self.pooled
        if pooled is not None:
            if pooled.pool_state is None:
                raise self.after_fork_error()
            if self.has_work(pooled.raw):
                raise ProgrammingError(
                    f"this connection of {datasource.name} cannot join {transaction.gtrid}: it has open work of its "
                    "own from before. commit() or rollback() it first. Nothing was done."
                )
            # Before it enlists, since the transaction may need this very connection of the pool.
            self._detach(pooled)
        self._own_state().joined = True
        enlistment: Enlistment = transaction.enlist(datasource)
        with enlistment.entered(self):
            self._carry_modes(enlistment.raw, self._own_state().modes)
        self.enlistment = enlistment
        return enlistment

    def _detach(self, pooled: Pooled[Any]) -> None:
        self.pooled = None
        self._own_state().restore()
        self._open_datasource().pool.give_back(pooled)

    def _attach(self) -> None:
        """Become plain: take a physical connection, and set on it what was set on this handle before."""
        pooled = self._open_datasource().pool.take()
        self.pooled = pooled
        state = self._own_state()
        for name, value in state.modes.items():
            setattr(pooled.raw, name, value)
        self.own_overrides().apply(state.attributes)

    def _uncommitted_in(self) -> tuple[Enlistment | None, Pooled[Any] | None]:
        """Where it may have work to commit or roll back: its enlistment, or its own physical connection, or neither.

        Unlike `current_enlistment`, it joins no transaction and takes no connection.
        """
        self.require_open()
        enlistment, pooled = self.enlistment, self.pooled
        if enlistment is None or enlistment.ended:
            if pooled is not None and pooled.pool_state is None:
                raise self.after_fork_error()
            return None, pooled
        ambient = ambient_transaction()
        if enlistment.owner() is not ambient:
            enlistment.require_here(ambient)
        return enlistment, None

    def _own_state(self) -> HandleState:
        if self.handle_state is None:
            self.handle_state = HandleState()
        return self.handle_state

    def own_overrides(self) -> SessionOverrides:
        """The overrides of a plain handle, on its physical connection; the pool resets that when it comes back."""
        state = self._own_state()
        pooled = self.pooled
        if state.overrides is None:
            state.overrides = SessionOverrides(pooled.raw)  # type: ignore[union-attr]
        pooled.dirty = True  # type: ignore[union-attr]
        return state.overrides

    def get_attribute(self, name: str) -> Any:
        """The driver's attribute, as it was set on this handle, or else as its raw connection has it."""
        state = self.handle_state
        if state is not None and name in state.attributes:
            return state.attributes[name]
        return getattr(self.raw_connection(), name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set the driver's attribute, for this handle alone."""
        enlistment = self.current_enlistment()
        state = self._own_state()
        if name in self._MODES:
            if enlistment is not None:
                with enlistment.entered(self):
                    self._set_mode(enlistment.raw, name, value)
            else:
                self.own_overrides()
                with translated():
                    setattr(self.pooled.raw, name, value)  # type: ignore[union-attr]
                state.modes = {**state.modes, name: value}
            return
        attributes: Mapping[str, Any] = {**state.attributes, name: value}
        if enlistment is None:
            with translated():
                self.own_overrides().apply(attributes)
        state.attributes = attributes

    def _set_mode(self, raw: Any, name: str, value: Any) -> None:
        """Set on an enlisted connection how its local transaction begins: only the value that it has is accepted."""
        if value != getattr(raw, name):
            raise ProgrammingError(
                f"{name} cannot be {value!r} on a connection that a transaction owns: leave it, and set it on "
                "connections outside. Nothing was done."
            )

    def _carry_modes(self, raw: Any, modes: Mapping[str, Any]) -> None:
        """Joining a transaction: set those modes of this handle that the transaction's connection can have, too."""

    def _call(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of the driver's connection."""
        enlistment = self.current_enlistment()
        if enlistment is None:
            pooled = self.pooled
            pooled.dirty = True  # type: ignore[union-attr]
            with translated():
                return getattr(pooled.raw, name)(*args, **kwargs)  # type: ignore[union-attr]
        around = enlistment.started if name in self._EXECUTING else enlistment.entered
        with around(self):
            return getattr(enlistment.raw, name)(*args, **kwargs)

    def holder(self) -> Pooled[Any] | Enlistment | None:
        """What holds the raw connection now: the pooled connection of a plain handle, or the enlistment."""
        return self.pooled or self.enlistment

    def raw_connection(self) -> Any:
        """The raw connection, to read its attributes."""
        self.require_open()
        if self.pooled is None and (self.enlistment is None or self.enlistment.ended):
            self.current_enlistment()
        holder: Any = self.holder()
        if holder.pool_state is None:
            raise self.after_fork_error()
        return holder.raw

    def has_work(self, raw: Any) -> bool:
        """Whether a local transaction is open; no I/O. True where the handle is closed by now, and cannot tell."""
        datasource = self._datasource
        if datasource is None:
            return True
        driver = datasource.driver_adapter
        return driver.is_open(raw) and driver.dialect.in_transaction(raw)

    def require_transaction(self) -> None:
        """Before a statement on a plain connection: check what its datasource's transaction.required demands."""
        datasource = self._datasource
        if datasource is not None and datasource.required is not None:
            datasource.required.check()

    def _open_datasource(self) -> DataSource:
        self.require_open()
        return self._datasource  # type: ignore[return-value]

    def after_fork_error(self) -> errors.InterfaceError:
        """The error where this is a forked child, and the physical connection is the parent's."""
        return InterfaceError(
            f"this connection of {self._open_datasource().name} is the parent process's, which goes on with it: "
            "connect() in this process. Nothing was sent."
        )

    def require_open(self) -> None:
        """InterfaceError where it is closed."""
        if self._datasource is None:
            raise InterfaceError("this connection is closed: take another by connect()")
        enlistment = self.enlistment
        if enlistment is not None and enlistment.ended and not (self.handle_state and self.handle_state.joined):
            raise InterfaceError(
                f"this connection of {self._datasource.name} was taken inside {enlistment.gtrid}, which "
                f"has ended ({enlistment.how_it_ended}): take another by connect(). Nothing was done."
            )
