"""XA as SQL, for MariaDB and MySQL: the commands, what their errors mean, and the listing.

All drivers share this file: their own tpc_*() either do not exist, or cannot end another session's branch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from txpool.resources.mysql.session.protocol import Session
from txpool.xid import FORMAT_ID, MAX_PART, Xid, parse

#: XAER_NOTA: no branch of that name that this session may end. Another session that is still connected may hold it.
NOTA: Final = 1397
#: XAER_RMFAIL: not in this state. After a deadlock the branch can only roll back.
RMFAIL: Final = 1399
#: XAER_OUTSIDE: a local transaction is open, which autocommit = 0 is enough for.
OUTSIDE: Final = 1400
#: XA_RBROLLBACK, XA_RBTIMEOUT, XA_RBDEADLOCK: the server has rolled the branch back. To the end of a prepared branch of
#: another session, MariaDB answers the first if that had written nothing.
ROLLED_BACK: Final = frozenset({1402, 1613, 1614})
#: XAER_RMERR: XA RECOVER without the privilege XA_RECOVER_ADMIN, in MySQL.
NOT_ALLOWED: Final = 1401
#: A deadlock: the server has rolled the whole transaction back.
DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
#: A row has changed since the transaction's snapshot (MariaDB with innodb_snapshot_isolation), and too many locks.
CHANGED_ROW, TOO_MANY_LOCKS = 1020, 1206
#: The errors of a statement after which the whole transaction is rolled back.
WHOLE_ROLLED_BACK: Final = ROLLED_BACK | {DEADLOCK, CHANGED_ROW, TOO_MANY_LOCKS}

#: Seconds after which the server itself ends a session that has prepared and is not heard of any more. Until then no
#: other session can end the branch.
HOLD_SECONDS: Final = 10
#: Sent between END and PREPARE, if the session's own value is not known: it comes back with `RELEASE_HOLD`. To note it
#: costs the server more than `ended_after` does.
HOLD: Final = f"set @txpool_wait_timeout = @@session.wait_timeout, session wait_timeout = {HOLD_SECONDS}"
RELEASE_HOLD: Final = (
    "set session wait_timeout = cast(ifnull(@txpool_wait_timeout, @@session.wait_timeout) as unsigned), "
    "@txpool_wait_timeout = null"
)
#: The end of a branch's name.
_FORMAT: Final = f"',{FORMAT_ID}"
# MySQL would send the bytes of anybody's name as text, which may be none.
_RECOVER: Final = {True: "xa recover", False: "xa recover convert xid"}


def named(verb: str, xid: Xid) -> str:
    """A command to a branch: start, end, prepare, commit or rollback. A name of txpool's needs no escaping."""
    return f"xa {verb} '{xid[0]}','{xid[1]}{_FORMAT}"  # by their places, which are found sooner than by their names


@lru_cache(maxsize=64)
def ended_after(seconds: int) -> str:
    """The command that lets the server end the session once it was silent for so long."""
    return f"set session wait_timeout = {seconds}"


def one_phase(xid: Xid) -> str:
    """The COMMIT of a branch that has ended and is not prepared."""
    return f"{named('commit', xid)} one phase"


def listed(session: Session, until: float | None = None) -> list[Xid]:
    """The branches of txpool's form that the server lists, of all its databases. Raises the server's error.

    A row has the format, two lengths, and both parts joined: as bytes in MariaDB, and in MySQL as hexadecimal digits.
    """
    found = []
    for form, gtrid_length, bqual_length, data in session.run(_RECOVER[session.raw.is_mariadb], until):
        length, whole = int(gtrid_length), int(gtrid_length) + int(bqual_length)
        joined = data if isinstance(data, bytes) else bytes.fromhex(str(data).removeprefix("0x"))
        if int(form) != FORMAT_ID or max(length, int(bqual_length)) > MAX_PART or len(joined) != whole:
            continue
        text = joined.decode("ascii", "replace")
        xid = parse(f"{text[:length]}:{text[length:]}")
        if xid is not None and len(xid.gtrid) == length:
            found.append(xid)
    return found
