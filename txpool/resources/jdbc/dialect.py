"""Local transactions over JDBC: how they commit and roll back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import described
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.driver.dialect import Dialect
from txpool.resources.jdbc.databases.database import EndedUnseen

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.jdbc.session import XaConnection


class JdbcDialect(Dialect):
    """Local transactions over an `XaConnection`. No driver tells reliably what its database has written."""

    def in_transaction(self, raw: XaConnection) -> bool:
        return bool(raw.lost or raw.started or raw.begun or raw.in_transaction)

    def commit(self, raw: XaConnection) -> None:
        if raw.lost:
            raise Refused("COMMIT was not sent: the connection was lost before it, and the database rolls back")
        try:
            if raw.begun:
                raw.database.require_begun(raw)
            raw.may_have_committed = False
        except EndedUnseen:
            raw.ended_unseen = raw.failed is None
            raise
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        raw.commit_durably()

    def rollback(self, driver: Driver, raw: XaConnection, until: float | None) -> BranchOutcome:
        unseen, stays = raw.ended_unseen, False
        if raw.lost:
            unseen = unseen or raw.may_have_committed
            driver.close(raw)
        else:
            try:
                if raw.begun and not unseen:
                    unseen = not _is_same(raw)
                if raw.started and raw.xid is not None:
                    raw.database.leave(raw, raw.xid)
                else:
                    raw.rollback()
                stays = raw.database.rows_stay(raw)
                raw.left()
            except Exception:
                unseen = unseen or raw.may_have_committed
                driver.close(raw)
        raw.ended_unseen = raw.may_have_committed = False
        if stays:
            return BranchOutcome.COMMITTED
        return BranchOutcome.LOST if unseen else BranchOutcome.ROLLED_BACK


def _is_same(raw: XaConnection) -> bool:
    """Whether the transaction is the one that was begun; true also if nobody can tell."""
    try:
        raw.database.require_begun(raw)
    except EndedUnseen:
        return raw.failed is not None  # a database that has refused a statement may have rolled back all of it
    except Exception:
        return True
    raw.may_have_committed = False
    return True
