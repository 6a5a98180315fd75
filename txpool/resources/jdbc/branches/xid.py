"""A branch's name as Java's drivers have it: javax.transaction.xa.Xid."""

from __future__ import annotations

from typing import Any

from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.jvm.jvm import helper
from txpool.xid import FORMAT_ID, MAX_PART, Xid, parse


def java_xid(xid: Xid) -> Any:
    """The name as a Java object. The JVM runs."""
    return call(helper("BranchName"), FORMAT_ID, xid.gtrid, xid.bqual)


def key_of(found: Any) -> str:
    """A text that no other Java Xid has: its format and both parts, a line each."""
    return str(call(helper("BranchName").parts, found))


def xid_of(found: Any) -> Xid | None:
    """The name of txpool's form that a Java Xid is; None for any other."""
    number, gtrid, bqual = key_of(found).split("\n")
    if int(number) != FORMAT_ID or max(len(gtrid), len(bqual)) > MAX_PART:
        return None
    xid = parse(f"{gtrid}:{bqual}")
    return xid if xid is not None and xid.gtrid == gtrid else None
