"""Branches of Artemis by XAResource, and who it is: messages in a queue of txpool's, which are browsed.

JMS has neither an identity nor a generation. The first message of the queue has the identity. Each process adds one
with its generation: a broker that has failed over, or was restored, does not have what came later. Without it nobody
could say that a branch that is gone, after a COMMIT whose answer was lost, was committed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from txpool.errors import OperationalError
from txpool.resources.base import Refused
from txpool.resources.jdbc.databases.by_xa import DatabaseByXA, XaError, xa_call
from txpool.resources.jdbc.databases.database import DatabaseIdentity, PreparedVote
from txpool.resources.jms.connection import ID
from txpool.resources.jms.manager import NO_RIGHT
from txpool.resources.messages.tables import Outgoing
from txpool.xid import Xid

QUEUE: Final = "txpool.identity"
_KIND: Final = "txpool_kind"
_GENERATION: Final = "generation"
_KEPT: Final = 90 * 86400.0  #: For how many seconds a generation is kept. Later an answer that was lost is a hazard.
#: Seconds after which the broker rolls back an active branch: the connection's end does so before.
_ACTIVE: Final = 20 * 86400
#: The number of the error at the end of a branch in which its user had no right to send.
_MAY_NOT_SEND: Final = "AMQ229032"


class Artemis(DatabaseByXA):
    """Artemis, with its JMS client."""

    name = "JMS"
    products = ()

    def identify(self, raw: Any, *, writes: bool) -> DatabaseIdentity:
        if writes:
            raw.create_queue(QUEUE)
        elif not raw.exists(QUEUE):
            return DatabaseIdentity()
        queue, selector = raw.queue(QUEUE), f"{_KIND} = 'identity'"
        if writes and next(raw.browse(queue, selector), None) is None:
            self._add(raw, queue, "identity", 0)
        # By its number: who may send there can send one that is browsed first, by its priority.
        found = raw.browse(queue, selector)
        first = min(found, key=lambda each: int(each.getCoreMessage().getMessageID()), default=None)
        return DatabaseIdentity("" if first is None else str(first.getStringProperty(ID)))

    def add_generation(self, raw: Any) -> str:
        return self._add(raw, raw.queue(QUEUE), _GENERATION, _KEPT)

    def has_generation(self, raw: Any, generation: str) -> bool:
        if not generation.isalnum():
            return False
        selector = f"{_KIND} = '{_GENERATION}' and {ID} = '{generation}'"
        return next(raw.browse(raw.queue(QUEUE), selector), None) is not None

    def _add(self, raw: Any, queue: Any, kind: str, live: float) -> str:
        made = secrets.token_hex(12)
        raw.send(queue, raw.message(Outgoing(made, None, None, {_KIND: kind}, 0)), live=live)
        return made

    def start(self, raw: Any, xid: Xid) -> None:
        xa_call(raw.xa.setTransactionTimeout, _ACTIVE)
        super().start(raw, xid)
        raw.start_answered = True

    def prepare(self, raw: Any, xid: Xid) -> PreparedVote:
        if not raw.start_answered:
            raise Refused("its START was not answered")
        with _rights():
            return super().prepare(raw, xid)

    def commit_one_phase(self, raw: Any, xid: Xid) -> None:
        if not raw.start_answered:
            raise Refused("its START was not answered")
        with _rights():
            super().commit_one_phase(raw, xid)

    def leave(self, raw: Any, xid: Xid) -> None:
        if not raw.start_answered:  # a branch of that name may be another's: its connection is closed instead
            raise OperationalError("its START was not answered")
        super().leave(raw, xid)


@contextmanager
def _rights() -> Iterator[None]:
    """Refused if the broker has not taken a message of the branch, and has rolled that back, for want of a right."""
    try:
        yield
    except XaError as error:
        if _MAY_NOT_SEND not in str(error):
            raise
        error.java_class = NO_RIGHT
        raise Refused(f"the broker has refused a message: {error}") from error


ARTEMIS = Artemis()
