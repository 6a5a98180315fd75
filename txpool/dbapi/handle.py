"""What a connection handle has beneath PEP 249: the physical connection that it uses now, and the driver's attributes.

A handle is in one of these states::

    plain      it has a physical connection of its own, and behaves as the driver's own connection does
    enlisted   it shares the physical connection of a transaction, and belongs to that transaction until its end
    detached   it was taken outside a transaction, joined one, and that has ended: its next use makes it plain, or
               enlists it in the transaction that is ambient then
    closed     by close(), or, if it was taken inside a transaction, by that transaction's end

Closed, it answers as a closed connection of the driver's does, and raises the driver's class with txpool's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.dbapi.driver_attributes import HandleState, SessionOverrides
from txpool.dbapi.refusals import cannot_join, mode_refused
from txpool.errors import Error, InterfaceError, translate, translated
from txpool.pool import Pooled
from txpool.tm.ambient import ambient as ambient_transaction
from txpool.tm.ambient import live
from txpool.tm.completion import dropped

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.dbapi.statements import PooledDatasource
    from txpool.resources.driver.raw import RawConnection
    from txpool.tm.transaction import Transaction


class Handle:
    """The states of a connection handle. `Connection` adds PEP 249, and each driver's subclass what the driver has."""

    # Few, since every connect() and close() sets each of them.
    __slots__ = ("__weakref__", "_datasource", "enlistment", "handle_state", "pooled", "required")

    #: The driver's class, of which isinstance() takes a handle for an instance.
    _driver_class: ClassVar[type] = object
    #: Attributes that say how the next local transaction begins.
    _MODES: ClassVar[frozenset[str]] = frozenset()
    #: Methods that another thread may call while the connection executes.
    _CONCURRENT: ClassVar[frozenset[str]] = frozenset()
    #: Methods that execute something.
    _EXECUTING: ClassVar[frozenset[str]] = frozenset()
    #: The class that the driver raises for a connection that is closed; ours, if a driver's is not known.
    _CLOSED: ClassVar[type[Exception]] = InterfaceError
    #: What the driver's own message says first, for libraries that look for it.
    _CLOSED_MESSAGE: ClassVar[str] = ""

    def __init__(self, datasource: PooledDatasource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        self._datasource: PooledDatasource | None = datasource
        self.required = datasource.required  # None if all statements outside transactions are allowed
        self.pooled = pooled
        self.enlistment = enlistment
        self.handle_state: HandleState | None = None

    def driver_attribute(self, name: str) -> Any:
        """An attribute of the driver's own, that no class of ours defines."""
        if name in Handle.__slots__:  # an interrupt has left it half made
            raise AttributeError(name)
        if name.startswith("__") or not (
            self._datasource is not None or hasattr(self._driver_class, name) or self._closed_raw() is not None
        ):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        closed = self._why_closed() is not None
        with self._as_closed():
            value = getattr(self.raw_connection(), name)
        if not callable(value) or name.startswith("_") or isinstance(value, type):
            return value
        around = self._call_closed if closed else self._caller_of(name)
        return lambda *args, **kwargs: around(name, args, kwargs)

    def _caller_of(self, name: str) -> Callable[[str, Any, Any], Any]:
        """What calls that method of the driver's connection while the handle is open."""
        return self._call_now if name in self._CONCURRENT else self._call

    if TYPE_CHECKING:
        # For type checkers: connect() returns any driver's handle, with that driver's own attributes.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    # -- which physical connection ------------------------------------------------------------------------------

    def current_enlistment(self) -> Enlistment | None:
        """The enlistment that a statement must use now; None if the handle is plain. Joins an ambient transaction.

        Errors: as `closed_error` if it is closed; InterfaceError if it is the parent process's; ProgrammingError
        if it belongs to another transaction than the ambient one.
        """
        ambient = ambient_transaction()
        if ambient is not None and ambient.extent is not None:
            ambient = live(ambient)
        enlistment = self.enlistment
        if enlistment is None:
            if ambient is not None:
                return self._join(ambient)
            if self.pooled is None:
                self._attach()
            elif self.pooled.pool_state is None:
                raise self.after_fork_error()
            return None
        owner = enlistment.owner()
        if owner is not ambient or enlistment.ended:
            if not enlistment.ended:  # perhaps an interrupt has kept it from its end
                if owner is not None and owner.abandoned:
                    dropped.await_rollback(owner)
                enlistment.release_left()
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
            if pooled.separate:
                raise cannot_join(datasource.name, transaction.gtrid, "")
            if self.has_work(pooled.raw):
                end = "tpc_commit() or tpc_rollback()" if self._open_two_phase() else "commit() or rollback()"
                raise cannot_join(datasource.name, transaction.gtrid, end)
            # Before it enlists, since the transaction may need this very connection of the pool.
            self._detach(pooled)
        self._own_state().joined = True
        enlistment: Enlistment = transaction.enlist_datasource(datasource)
        with enlistment.entered(self):
            self._carry_modes(enlistment.raw, enlistment.without_fixed(self._own_state().modes))
            if self._own_state().joins_commits:
                enlistment.own_savepoints()
        self.enlistment = enlistment
        return enlistment

    def _open_two_phase(self) -> str:
        """What it has begun by tpc_begin() and not ended, for messages; empty if that is nothing."""
        return ""

    def _detach(self, pooled: Pooled[Any]) -> None:
        datasource = self._open_datasource()
        self.pooled = None
        self._before_give_back(pooled, datasource)
        datasource.pool.give_back(pooled)

    def _before_give_back(self, pooled: Pooled[Any], datasource: PooledDatasource) -> None:
        """Once it has left its physical connection, restore there what was set on this handle; no I/O."""
        if self.handle_state is not None:
            self.handle_state.restore()

    def _attach(self) -> None:
        """Become plain: take a physical connection, and set on it what was set on this handle before."""
        pooled = self._open_datasource().pool.take()
        pooled.plain = True
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

    @property
    def joins_commits(self) -> bool:
        """Whether its commit() and rollback() end its own work within a transaction. False once it is closed."""
        state, datasource = self.handle_state, self._datasource
        return datasource is not None and (datasource.joins_commits or (state is not None and state.joins_commits))

    def join_commits(self) -> None:
        """From now on its commit() and rollback() end its own work within a transaction. It has done none yet."""
        self._own_state().joins_commits = True
        enlistment = self.enlistment
        if enlistment is not None:
            with enlistment.lock:
                enlistment.own_savepoints()

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
        with self._as_closed():
            return getattr(self.raw_connection(), name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set the driver's attribute, for this handle alone."""
        if self._why_closed() is not None:
            with self._as_closed():
                setattr(self.raw_connection(), name, value)
            return
        enlistment = self.current_enlistment()
        state = self._own_state()
        if name in self._MODES:
            if enlistment is not None:
                with enlistment.entered(self):
                    enlistment.require_not_fixed(name, value)
                    self._set_mode(enlistment, name, value)
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

    def _set_mode(self, enlistment: Enlistment, name: str, value: Any) -> None:
        """Set on an enlisted connection how its local transaction begins: only the value that it has is accepted.

        So is the one that this handle had before it joined, as Django sets it again.
        """
        modes = self._own_state().modes
        if value != getattr(enlistment.raw, name) and not (name in modes and value == modes[name]):
            raise mode_refused(name, value, enlistment.datasource.name, enlistment.gtrid)

    def _carry_modes(self, raw: RawConnection, modes: Mapping[str, Any]) -> None:
        """Joining a transaction: set those modes of this handle that the transaction's connection can have, too."""

    def _call(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of the driver's connection."""
        enlistment = self.current_enlistment()
        if enlistment is None:
            pooled = self.pooled
            pooled.dirty = True  # type: ignore[union-attr]
            with translated():
                return getattr(pooled.raw, name)(*args, **kwargs)  # type: ignore[union-attr]
        if name in self._EXECUTING:
            block = enlistment.started(self, self._statement_in(name, args, kwargs))
        else:
            block = enlistment.entered(self)
        with block:
            return getattr(enlistment.raw, name)(*args, **kwargs)

    def _statement_in(self, name: str, args: Any, kwargs: Any) -> Any:
        """The statement that a call of the driver's connection would execute; None if none is seen."""
        return None

    def text_of_statement(self, statement: Any) -> bytes | str:
        """A statement that is no str, as text, or as bytes; empty if it cannot be read so. No I/O."""
        if isinstance(statement, str):
            return str.__str__(statement)
        return bytes(statement) if isinstance(statement, bytes | bytearray | memoryview) else ""

    def _call_now(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method that another thread may call while the connection executes."""
        with translated():
            return getattr(self.raw_connection(), name)(*args, **kwargs)

    def holder(self) -> Pooled[Any] | Enlistment | None:
        """What holds the raw connection now: the pooled connection of a plain handle, or the enlistment."""
        return self.pooled or self.enlistment

    def raw_connection(self) -> Any:
        """The raw connection, to read its attributes; closed, a closed one of the driver's, if there is one."""
        why = self._why_closed()
        if why is not None:
            closed = self._closed_raw()
            if closed is None:
                raise self.closed_error(why)
            return closed
        if self.pooled is None and (self.enlistment is None or self.enlistment.ended):
            self.current_enlistment()
        holder: Any = self.holder()
        if holder.pool_state is None:
            raise self.after_fork_error()
        return holder.raw

    def has_work(self, raw: RawConnection) -> bool:
        """Whether a local transaction is open; no I/O. True if the handle is closed by now, and cannot tell."""
        datasource = self._datasource
        if datasource is None:
            return True
        if self.handle_state is not None and self.handle_state.in_two_phase:
            return True
        driver = datasource.driver_adapter
        return driver.is_open(raw) and driver.dialect.in_transaction(raw)

    def require_transaction(self) -> None:
        """Before a statement on a plain connection: check what its datasource's transaction.required demands."""
        if self.required is not None:
            self.required.check()

    def _open_datasource(self) -> PooledDatasource:
        self.require_open()
        return self._datasource  # type: ignore[return-value]

    def after_fork_error(self) -> InterfaceError:
        """The error if this is a forked child, and the physical connection is the parent's."""
        return InterfaceError(
            f"this connection of {self._open_datasource().name} is the parent process's, which goes on with it: "
            "connect() in this process. Nothing was sent."
        )

    # -- closed --------------------------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise `closed_error` if it is closed."""
        why = self._why_closed()
        if why is not None:
            raise self.closed_error(why)

    def closed_error(self, why: str) -> BaseException:
        """The error of a closed connection: of the class that the driver raises, and of ours."""
        return translate(self._CLOSED(f"{self._CLOSED_MESSAGE}{why}"))

    def _why_closed(self) -> str | None:
        datasource, enlistment = self._datasource, self.enlistment
        if datasource is None:
            return "this connection is closed: take another by connect()"
        if enlistment is not None and enlistment.ended and not (self.handle_state and self.handle_state.joined):
            return (
                f"this connection of {datasource.name} was taken inside {enlistment.gtrid}, which has ended "
                f"({enlistment.how_it_ended}): take another by connect(). Nothing was done."
            )
        return None

    def _closed_raw(self) -> Any:
        """A closed connection of the driver's, which answers in place of this one; None if there is none."""
        state = self._own_state()
        if state.closed_raw is None:
            state.closed_raw = self._make_closed_raw()
        return state.closed_raw

    def _make_closed_raw(self) -> Any:
        return None

    def _call_closed(self, name: str, args: Any, kwargs: Any) -> Any:
        with self._as_closed():
            return getattr(self.raw_connection(), name)(*args, **kwargs)

    @contextmanager
    def _as_closed(self) -> Iterator[None]:
        """In place of the driver's message that a connection is closed: ours, which also says why."""
        try:
            yield
        except self._CLOSED as error:
            why = self._why_closed()
            if why is None or isinstance(error, Error):
                raise
            raise self.closed_error(why) from None
