"""A physical connection of psycopg's, and what is known of its session."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq.abc import PGresult

from txpool.resources.base import PrepareLocation
from txpool.resources.postgresql.session.characteristics import beginning_of
from txpool.resources.postgresql.session.libpq import OPEN, value
from txpool.resources.postgresql.session.spare_cursor import SparingConnection
from txpool.sql.characteristics import UNSPECIFIED


class PsycopgRawConnection(SparingConnection):
    """A physical connection, and the state of its session."""

    #: The database's identity: the system identifier of the cluster and the oid of the database, which no rename
    #: changes.
    identity = ""
    #: The server's timeline; empty on a standby.
    timeline = ""
    #: The oid of the login role, which no SET ROLE and no rename changes.
    role = ""
    #: What the log notes before a branch prepares over it.
    location: PrepareLocation
    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: Whether a pooler is between here and the server: then libpq's number of the session is the pooler's own.
    behind_pooler = False
    #: Behind a pooler: the answers to the message that began the transaction, if that asked for the session's number.
    begun: Sequence[PGresult] = ()
    #: Why the statement failed that aborted the transaction last, and which it was.
    failure = ""
    #: True once SET or the like may have changed the session: `reset` restores it.
    changed = False
    #: Settings that the server reports by itself when they change, whatever has changed them, as the session began with
    #: them. To look at one costs each transaction some hundred instructions. None if the server reports it not:
    #: search_path before PostgreSQL 18.
    search_path: bytes | None = None
    time_zone: bytes | None = None
    defaults_to_read_only: bytes | None = None
    #: True once the user may have prepared statements in SQL.
    prepared = False
    #: The SQL that the session began with, and that `reset` runs again.
    initial_sql = ""
    #: By the command tags since `watch_commands`: whether anything may have been written, and whether NOTIFY was sent.
    wrote = False
    notified = False
    #: tpc_prepare() has failed: the transaction was rolled back, and tpc_rollback() has nothing to do.
    not_prepared = False
    #: PREPARE TRANSACTION of tpc_prepare() may have been sent, and its answer has not come.
    unanswered = False
    #: How its transactions begin by the datasource's settings.
    configured = UNSPECIFIED
    #: How its transactions begin may be another way by now.
    begins_otherwise = False
    #: The statement that begins a transaction, with what is set on the connection; empty until it is made.
    beginning = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Each transaction reads these, and Python 3.11 reads slowly what only the class has.
        self.inherited = self.changed = self.begins_otherwise = self.behind_pooler = False

    @property
    def session_number(self) -> int:
        """The server's own number of the session that executes now; 0 if that is not known. Any thread may ask. No I/O.

        Behind a pooler that is the transaction's: outside any, nobody knows it.
        """
        if self.pgconn.status != OPEN:
            return 0
        if not self.behind_pooler:
            return self.pgconn.backend_pid
        begun = self.begun
        return int(value(begun[1]) or 0) if len(begun) > 1 and begun[1].ntuples else 0

    def hang_up(self) -> None:
        """Let no more pass: a thread that waits for an answer gets an error, and so does who sends. Any thread may."""
        with suppress(OSError, psycopg.Error):  # it is closed
            descriptor = self.pgconn.socket
            with socket.socket(fileno=os.dup(descriptor)) as same:
                if self.pgconn.socket == descriptor:  # else the number may have been another's by then
                    same.shutdown(socket.SHUT_RDWR)

    def note_reported(self) -> None:
        """Note what the server has reported of the session, which its next user shall find. No I/O."""
        reported = self.pgconn.parameter_status
        self.search_path, self.time_zone = reported(b"search_path"), reported(b"TimeZone")
        self.defaults_to_read_only = reported(b"default_transaction_read_only")

    def is_as_reported(self) -> bool:
        """Whether the server has reported no change since `note_reported`. No I/O."""
        reported = self.pgconn.parameter_status
        return (
            reported(b"search_path") == self.search_path
            and reported(b"TimeZone") == self.time_zone
            and reported(b"default_transaction_read_only") == self.defaults_to_read_only
        )

    def begin_message(self) -> str:
        """The BEGIN of the next transaction."""
        if not self.beginning:
            self.beginning = beginning_of(self)
        return self.beginning

    def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_isolation_level(value)

    def set_read_only(self, value: bool | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_read_only(value)

    def set_deferrable(self, value: bool | None) -> None:
        self.begins_otherwise, self.beginning = True, ""
        super().set_deferrable(value)

    def set_autocommit(self, value: bool) -> None:
        """As psycopg's. Without a BEGIN of psycopg's, the session itself must have what is configured."""
        self.begins_otherwise = True
        super().set_autocommit(value)
        parts = []
        if value and self.configured.isolation is not None and self.isolation_level is not None:
            parts.append(f"isolation level {self.isolation_level.name.replace('_', ' ')}")
        if value and self.configured.read_only and self.read_only:
            parts.append("read only")
        if parts:
            self.changed = True
            psycopg.Cursor(self).execute(f"set session characteristics as transaction {', '.join(parts)}".encode())
