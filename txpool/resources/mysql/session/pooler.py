"""Poolers and proxies before MariaDB and MySQL, such as ProxySQL and MaxScale: how one is seen, and why it is refused.

It greets its clients with numbers of its own, and the server numbers the sessions. What passes TCP connections on, as
HAProxy does, passes the server's own greeting on, too.

Whether it gives a client one session or several cannot be seen, and may change. It learns of a transaction by the
status in the server's answers, or by the SQL. So a session that is not the greeted one is never trusted with a branch.
"""

from __future__ import annotations

from typing import Final

from txpool.errors import ConfigurationError

#: Asked beside other facts: to `select connection_id()` alone, ProxySQL gives its own number.
SESSION: Final = "connection_id()"
FOUND: Final = (
    "a pooler or a proxy, such as ProxySQL or MaxScale, is between here and the server: the session there is not the "
    "one that has greeted the client"
)
WHY: Final = (
    "it may execute the commands of one transaction in several sessions, so that work is outside the transaction, and "
    "what belongs to a session is lost: isolation level, read-only, and the server's word that a rollback undoes all"
)
DO: Final = (
    "let url lead to the server itself; what only passes TCP connections on, such as HAProxy with mode tcp, may be in "
    "between"
)
#: The greeting has no more of a session's number.
_GREETED_BITS: Final = 0xFFFF_FFFF


class BehindPooler(ConfigurationError):
    """The datasource does not lead to the server itself, and its mode needs that. Nothing was begun."""


def is_greeted(greeted: int, session: int) -> bool:
    """Whether the server's session is the one that the client was greeted by."""
    return (greeted ^ session) & _GREETED_BITS == 0


def refused(datasource: str, do: str = DO) -> BehindPooler:
    return BehindPooler(f"datasource {datasource}: {FOUND}. Nothing was begun: {WHY}. Do this: {do}")
