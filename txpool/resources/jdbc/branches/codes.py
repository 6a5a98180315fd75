"""The codes of javax.transaction.xa.XAException, and what each says about a branch."""

from __future__ import annotations

from typing import Any, Final

from txpool.resources.base import BranchOutcome

#: `prepare` has answered that the branch had written nothing, and has ended.
XA_RDONLY: Final = 3
#: The flags of XAResource's methods.
TMNOFLAGS: Final = 0
TMSUCCESS: Final = 0x4000000
TMFAIL: Final = 0x20000000
TMSTARTRSCAN: Final = 0x1000000
TMENDRSCAN: Final = 0x800000

XA_HEURHAZ, XA_HEURCOM, XA_HEURRB, XA_HEURMIX = 8, 7, 6, 5
XA_RETRY: Final = 4
XAER_ASYNC, XAER_RMERR, XAER_NOTA, XAER_INVAL, XAER_PROTO = -2, -3, -4, -5, -6
XAER_RMFAIL, XAER_DUPID, XAER_OUTSIDE = -7, -8, -9
#: XA_RBBASE to XA_RBEND: the database has rolled the branch back.
ROLLED_BACK: Final = range(100, 108)
#: The answers to PREPARE after which nothing is prepared, nor ever will be, and the branch is still open or never was.
NOT_PREPARED: Final = frozenset({XAER_INVAL, XAER_DUPID, XAER_OUTSIDE})
#: The answers to the end of a prepared branch that say that the call was wrong there and then, and did nothing.
NOT_NOW: Final = frozenset({XA_RETRY, XAER_ASYNC, XAER_INVAL, XAER_PROTO, XAER_DUPID, XAER_OUTSIDE})

#: What a branch did that the database has ended by itself. Of one that it ended in part, or does not remember, nobody
#: can say how it ended.
HEURISTIC: Final = {
    XA_HEURCOM: BranchOutcome.COMMITTED,
    XA_HEURRB: BranchOutcome.ROLLED_BACK,
    XA_HEURMIX: BranchOutcome.LOST,
    XA_HEURHAZ: BranchOutcome.LOST,
}

_NAMES: Final = {
    100: "XA_RBROLLBACK",
    101: "XA_RBCOMMFAIL",
    102: "XA_RBDEADLOCK",
    103: "XA_RBINTEGRITY",
    104: "XA_RBOTHER",
    105: "XA_RBPROTO",
    106: "XA_RBTIMEOUT",
    107: "XA_RBTRANSIENT",
    XA_HEURHAZ: "XA_HEURHAZ",
    XA_HEURCOM: "XA_HEURCOM",
    XA_HEURRB: "XA_HEURRB",
    XA_HEURMIX: "XA_HEURMIX",
    XA_RETRY: "XA_RETRY",
    XAER_ASYNC: "XAER_ASYNC",
    XAER_RMERR: "XAER_RMERR",
    XAER_NOTA: "XAER_NOTA",
    XAER_INVAL: "XAER_INVAL",
    XAER_PROTO: "XAER_PROTO",
    XAER_RMFAIL: "XAER_RMFAIL",
    XAER_DUPID: "XAER_DUPID",
    XAER_OUTSIDE: "XAER_OUTSIDE",
}


def code_of(error: Any) -> int:
    """The code of an XAException; 0 if it has none, which no specification allows and some drivers do."""
    return int(getattr(error, "errorCode", 0))


def name_of(code: int) -> str:
    """A code as X/Open calls it."""
    return _NAMES.get(code, f"XA code {code}")
