"""Derby: by XAResource, which keeps to the specification. It needs no more than an identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.resources.jdbc.databases import own_tables
from txpool.resources.jdbc.databases.by_xa import DatabaseByXA
from txpool.resources.jdbc.databases.database import DatabaseIdentity
from txpool.resources.jdbc.marks import DerbyMarks

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection


class Derby(DatabaseByXA):
    name = "Derby"
    products = ("apache derby",)
    marks = DerbyMarks()
    savepoint_end = " on rollback retain cursors"

    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        return DatabaseIdentity(own_tables.identity(raw, writes=writes))

    add_generation = staticmethod(own_tables.add_generation)
    has_generation = staticmethod(own_tables.has_generation)
