"""Branches by javax.transaction.xa.XAResource, as X/Open has them: Derby, MariaDB, and all without a file here.

`prepare` says 0 or XA_RDONLY also if a statement has failed. So neither is a yes then: `failures_doom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote, Refused
from txpool.resources.branches.phase_two import DONE, PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.branches import codes
from txpool.resources.jdbc.branches.xid import java_xid, key_of, xid_of
from txpool.resources.jdbc.databases.database import GENERATION, EndedUnseen, JdbcDatabase, PreparedVote
from txpool.resources.jdbc.dbapi.errors import ConnectionLost, OperationalError, call, from_java
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

_SAVEPOINT: Final = "txpool_begin"


class XaError(OperationalError):
    """An XAException. `code` is its error code."""

    code = 0


class XaConnectionLost(XaError, ConnectionLost):
    """An XAException since the connection is gone: whether the call was executed is not known."""


def xa_call(method: Any, *arguments: Any) -> Any:
    """Call a method of XAResource. `XaError`, or the error that the exception is mapped to."""
    import jpype

    jvm.entered(method)
    found: BaseException
    try:
        return method(*arguments)
    except jpype.JException as error:
        found = _mapped(error, str(method.__name__))
    raise found  # outside of the handler, so that no Java object is chained


def _mapped(error: Any, name: str) -> BaseException:
    mapped = from_java(error)
    if not isinstance(error, _xa_exception()):
        return mapped
    code = codes.code_of(error)
    text = str(error.getMessage() or "").strip()
    cause = error.getCause()
    if cause is not None and str(cause.getMessage()) not in text:
        text = f"{text} ({cause.getMessage()})"
    made = XaConnectionLost if isinstance(mapped, ConnectionLost) else XaError
    found = made(f"XAResource.{name} was answered by {codes.name_of(code)}{f': {text}' if text else ''}")
    found.code = code
    return found


def _xa_exception() -> Any:
    import jpype

    return jpype.JClass("javax.transaction.xa.XAException")


class DatabaseByXA(JdbcDatabase):
    """A database whose branches begin, prepare and end by XAResource."""

    def begin(self, raw: XaConnection) -> None:
        raw.autocommit = False
        self.begin_again(raw)

    def require_begun(self, raw: XaConnection) -> None:
        savepoint, raw.savepoint = raw.savepoint, None
        if savepoint is None:
            return
        try:
            call(raw.java.releaseSavepoint, savepoint)
        except Exception as error:
            raw.broken = raw.broken or isinstance(error, ConnectionLost)
            if raw.lost:
                raise
            raise EndedUnseen() from None  # the driver says no more than that there is no such savepoint

    def begin_again(
        self, raw: XaConnection
    ) -> None:  # if a savepoint is gone, so is the transaction that it was set in
        raw.savepoint = call(raw.java.setSavepoint, _SAVEPOINT)

    def start(self, raw: XaConnection, xid: Xid) -> None:
        raw.java_xid = java_xid(xid)
        xa_call(raw.xa.start, raw.java_xid, codes.TMNOFLAGS)

    def prepare(self, raw: XaConnection, xid: Xid) -> PreparedVote:
        try:
            xa_call(raw.xa.end, raw.java_xid, codes.TMSUCCESS)
            raw.xa_ended = True
        except XaError as error:
            if error.code in codes.ROLLED_BACK:
                raise Refused(f"the database has rolled it back: {error}") from error
            raise Refused(f"it could not be ended, and nothing was prepared: {error}") from error
        self.between_end_and_prepare(raw)
        try:
            answer = int(xa_call(raw.xa.prepare, raw.java_xid))
        except XaError as error:
            if error.code in codes.ROLLED_BACK or error.code in codes.NOT_PREPARED:
                raise Refused(f"the database refused to prepare: {error}") from error
            raise
        evidence = {GENERATION: raw.generation} if raw.generation else {}
        if answer == codes.XA_RDONLY:
            return PreparedVote(PrepareVote.READ_ONLY, evidence)
        if answer != 0:
            raise OperationalError(f"XAResource.prepare has answered {answer}, which is neither XA_OK nor XA_RDONLY")
        return PreparedVote(PrepareVote.COMMIT, evidence)

    def between_end_and_prepare(self, raw: XaConnection) -> None:
        """What the session is told before it prepares."""

    def leave(self, raw: XaConnection, xid: Xid) -> None:
        if not raw.xa_ended:
            try:
                xa_call(raw.xa.end, raw.java_xid, codes.TMFAIL)
            except XaError as error:
                if error.code not in codes.ROLLED_BACK:
                    raise
        try:
            xa_call(raw.xa.rollback, raw.java_xid)
        except XaError as error:
            # It has rolled back: by itself, or as one that END has already taken away.
            if error.code not in codes.ROLLED_BACK and error.code != codes.XAER_NOTA:
                raise

    def commit_one_phase(self, raw: XaConnection, xid: Xid) -> None:
        try:
            xa_call(raw.xa.end, raw.java_xid, codes.TMSUCCESS)
            raw.xa_ended = True
        except XaError as error:
            raise Refused(f"COMMIT was not sent: {error}") from error
        try:
            xa_call(raw.xa.commit, raw.java_xid, True)
        except XaError as error:
            if error.code in codes.ROLLED_BACK:
                raise Refused(f"the database refused to commit: {error}") from error
            raise

    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        xid = java_xid(record.xid)
        try:
            if verb is PhaseTwoVerb.COMMIT:
                xa_call(raw.xa.commit, xid, False)
            else:
                xa_call(raw.xa.rollback, xid)
        except XaError as error:
            return self._meaning(error, verb, own=own)
        return DONE

    def _meaning(self, error: XaError, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        if isinstance(error, XaConnectionLost):  # Artemis's client says XA_RETRY then, as if nothing was sent
            raise error
        if error.code == codes.XAER_NOTA:
            return PhaseTwoReply(ReplyKind.GONE, str(error))
        if error.code in codes.HEURISTIC:
            return PhaseTwoReply(ReplyKind.BY_ITSELF, str(error), codes.HEURISTIC[error.code], remembered=True)
        if error.code in codes.ROLLED_BACK:
            return self.rolled_back(error, verb, own=own)
        if error.code in codes.NOT_NOW:
            return PhaseTwoReply(ReplyKind.REFUSED, str(error))
        raise error  # the session is not to be believed: what became of the branch is found out by another

    def rolled_back(self, error: XaError, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        """What XA_RB* means, as the answer to the end of a prepared branch."""
        return PhaseTwoReply(ReplyKind.BY_ITSELF, str(error), BranchOutcome.ROLLED_BACK)

    def forget(self, raw: XaConnection, xid: Xid) -> None:
        xa_call(raw.xa.forget, java_xid(xid))

    def listed(self, raw: XaConnection) -> list[PreparedBranch]:
        """By XAResource.recover. Some drivers ignore its flags, and list all at each call."""
        evidence = {GENERATION: raw.generation} if raw.generation else {}
        found: dict[str, PreparedBranch | None] = {}
        flags = codes.TMSTARTRSCAN
        while True:
            some = {key_of(each): xid_of(each) for each in xa_call(raw.xa.recover, flags) or ()}
            if some.keys() <= found.keys():
                break
            found |= {key: xid and PreparedBranch(xid, evidence=evidence) for key, xid in some.items()}
            flags = codes.TMNOFLAGS
        xa_call(raw.xa.recover, codes.TMENDRSCAN)
        return [each for each in found.values() if each is not None]
