"""The connection of one alias, over any database: its sessions, its savepoints, its on_commit()."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.backends.utils import debug_transaction
from django.db.utils import ProgrammingError

from txpool.django.cursors import following
from txpool.django.sources import datasource_of
from txpool.django.transactions.aliases import Hook
from txpool.django.transactions.demarcation import Demarcation
from txpool.django.transactions.failures import ErrorWrapper
from txpool.errors import TransactionRolledBack

if TYPE_CHECKING:
    from txpool.datasource import DataSource


class Transactional(Demarcation):
    """Which session an alias has, and when. Before Django's own class among the bases of an alias's connection."""

    #: What a datasource has for Django if its file has nothing else.
    session_defaults: dict[str, str] = {}

    def __init__(self, settings_dict: dict[str, Any], alias: str = DEFAULT_DB_ALIAS) -> None:
        #: Of the database of that NAME.
        self._datasource: tuple[str | None, DataSource] | None = None
        #: How often close() was called: a cursor from before that stays closed.
        self.times_closed = 0
        super().__init__(settings_dict, alias)

    @property
    def datasource(self) -> DataSource:
        """The datasource of the database that this alias has now."""
        name = self.settings_dict["NAME"]
        if self._datasource is None or self._datasource[0] != name:
            database = self.no_database if name is None else name
            self._datasource = name, datasource_of(self.settings_dict, database, self.defaults())
        return self._datasource[1]

    def defaults(self) -> dict[str, str]:
        """As `session_defaults`, for this alias."""
        return self.session_defaults

    #: The database in which Django creates others.
    no_database = ""

    # -- savepoints ---------------------------------------------------------------------------------------------

    def _savepoint_allowed(self) -> bool:
        return self._sync() is not None or super()._savepoint_allowed()

    def _savepoint(self, sid: str) -> None:
        here = self._sync()
        # An alias that is not used in a transaction takes no part in it.
        if here is not None and (self._pending or not here.works_in(self.datasource.name)):
            with debug_transaction(self, self.ops.savepoint_create_sql(self._named(sid))):
                self._pending.append(sid)
        else:
            super()._savepoint(self._named(sid))

    def _savepoint_commit(self, sid: str) -> None:
        if sid in self._pending:
            with debug_transaction(self, self.ops.savepoint_commit_sql(self._named(sid))):
                self._pending.remove(sid)
        else:
            super()._savepoint_commit(self._named(sid))

    def _savepoint_rollback(self, sid: str) -> None:
        self._undo_asked = self._undo_asked and self.needs_rollback  # that of an inner block is done with this
        if sid in self._pending:
            return
        within = None if self._within is None else self._within()
        if within is not None and not within.active:  # it rolls back as a whole
            return
        try:
            super()._savepoint_rollback(self._named(sid))
        except BaseException as error:
            if within is not None and self._begun is None and not self._savepoints:  # nothing around it undoes it
                within.set_rollback_only(error)
            raise

    def _named(self, sid: str) -> str:
        # Two aliases may be over one datasource, and so on one session.
        return sid if self._within is None else f"{sid}_{self.alias.encode().hex()[:16]}"

    # -- its connection -----------------------------------------------------------------------------------------

    def ensure_connection(self) -> None:
        here = self._sync()
        if self.connection is not None and self._inside is (here is None):
            self._drop_connection()
        if here is None or self.connection is not None:
            super().ensure_connection()
            return
        if self.closed_in_transaction:
            raise ProgrammingError("Cannot open a new connection in an atomic block.")
        with self.wrap_database_errors:
            self._connect_inside()

    def connect(self) -> None:
        if self._sync() is None:
            self._inside = False
            try:
                super().connect()
            except BaseException:  # an interrupt: it may not be in autocommit mode
                self._drop_connection()
                raise
        else:
            self._connect_inside()

    def _connect_inside(self) -> None:
        self._inside = True
        try:
            self.check_settings()
            self.errors_occurred = False
            self.connection = self.get_new_connection(self.get_connection_params())
            self.init_connection_state()
            connection_created.send(sender=self.__class__, connection=self)
        except BaseException:
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        connection, self.connection = self.connection, None
        self._inside = False
        if connection is not None:
            connection.close()

    @cached_property
    def wrap_database_errors(self) -> ErrorWrapper:
        return ErrorWrapper(self)

    def _cursor(self, name: str | None = None) -> Any:
        self.prepare_session()
        return super()._cursor(name)

    def make_cursor(self, cursor: Any) -> Any:
        return following(super().make_cursor(cursor))

    def make_debug_cursor(self, cursor: Any) -> Any:
        return following(super().make_debug_cursor(cursor))

    def executes_outside(self, statement: Any) -> bool:
        """Whether the statement is executed by `cursor_outside`, and not in the transaction that is open."""
        return False

    def prepare_session(self) -> None:
        """Have the connection that a statement wants here and now, with the savepoints that are open."""
        self.ensure_connection()
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        with self.wrap_database_errors:
            cursor = self.connection.cursor()
            try:
                for sid in pending:
                    cursor.execute(self.ops.savepoint_create_sql(self._named(sid)))
            finally:
                cursor.close()

    def close(self) -> None:
        self.times_closed += 1
        here = self._sync()
        if here is None or self._in_atomic_block:
            if here is not None and self.connection is not None:
                here.set_rollback_only(
                    TransactionRolledBack(
                        f"{here.gtrid} was rolled back, since alias {self.alias!r} was closed within its atomic block",
                        gtrid=here.gtrid,
                    )
                )
            super().close()
            return
        self.validate_thread_sharing()
        self._drop_connection()  # its work stays in the transaction, and its on_commit() with it

    def close_if_unusable_or_obsolete(self) -> None:
        """As Django's, between requests: so what an earlier one in this thread has left behind is forgotten."""
        if self.in_atomic_block and self._outlived:
            self._leave()
        if self.in_atomic_block or self._sync() is None:
            super().close_if_unusable_or_obsolete()

    @contextmanager
    def temporary_connection(self) -> Iterator[Any]:
        if self._sync() is None:
            with super().temporary_connection() as cursor:
                yield cursor
        else:  # closed, as Django would, it would end the transaction
            with self.cursor() as cursor:
                yield cursor

    # -- on_commit ----------------------------------------------------------------------------------------------

    def on_commit(self, func: Any, robust: bool = False) -> None:
        if callable(func) and not self.in_atomic_block and self._sync() is not None:
            self.run_on_commit.append((set(), func, robust))
        else:
            super().on_commit(func, robust)

    def take_hooks(self, gtrid: str) -> list[Hook]:
        """The functions of this transaction, which has committed."""
        within = None if self._within is None else self._within()
        if within is None or within.gtrid != gtrid:
            return []
        hooks, self.run_on_commit = self.run_on_commit, []
        return [(function, robust) for _, function, robust in hooks]

    # -- other databases of the server --------------------------------------------------------------------------

    @contextmanager
    def _nodb_cursor(self) -> Iterator[Any]:
        self.datasource.flush()  # Django creates and removes the database: nobody may be connected to it
        with super()._nodb_cursor() as cursor:
            yield cursor
