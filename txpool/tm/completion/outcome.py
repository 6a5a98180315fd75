"""The errors of a transaction's end, and their messages: what happened, what stays true, and what to do next."""

from __future__ import annotations

from txpool.errors import (
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    ProgrammingError,
    TransactionError,
    TransactionInDoubt,
    TransactionRolledBack,
    described,
)
from txpool.resources.base import BranchOutcome
from txpool.tm.commit.request import Outcome, Result
from txpool.tm.completion.status import Status

_HEURISTIC: dict[Outcome, type[TransactionError]] = {
    Outcome.HEURISTIC_ROLLBACK: HeuristicRollback,
    Outcome.HEURISTIC_COMMIT: HeuristicCommit,
    Outcome.HEURISTIC_MIXED: HeuristicMixed,
    Outcome.HEURISTIC_HAZARD: HeuristicHazard,
}


def rolled_back(gtrid: str, reason: str) -> TransactionRolledBack:
    """The error of a transaction that txpool itself has rolled back."""
    return TransactionRolledBack(
        f"{gtrid} was rolled back, since {reason}; nothing that was done within it stays", gtrid=gtrid
    )


def no_more_work(gtrid: str, status: Status, cause: BaseException | None) -> ProgrammingError:
    """The error of work in a transaction that has ended, or can only roll back for this cause."""
    if status is Status.MARKED_ROLLBACK:
        # A TransactionRolledBack says no more than that it rolls back.
        why = "" if cause is None or isinstance(cause, TransactionRolledBack) else f" ({_cause_text(cause)})"
        return ProgrammingError(
            f"{gtrid} is marked rollback-only{why}, and nothing was done: it can do nothing but roll back. Leave its "
            "block, or call rollback(); then begin another"
        )
    return ProgrammingError(
        f"{gtrid} has ended ({status.value}), and nothing was done: it can take no more work. Begin another"
    )


def raise_outcome(result: Result, *, wanted: Outcome) -> None:
    """Raise the error of a result; return if it has the outcome that the caller wanted."""
    if result.interrupt is not None:
        result.interrupt.add_note(f"{result.gtrid}: {_describe(result)}")
        raise result.interrupt
    if result.outcome is not wanted:
        raise _error(result) from result.cause


def _error(result: Result) -> TransactionError:
    datasource = getattr(result.cause, "datasource", None)
    if isinstance(result.cause, TransactionRolledBack) and result.outcome is Outcome.ROLLED_BACK:
        text = str(result.cause)
        named = text if result.gtrid in text else f"{result.gtrid}: {text}"
        return type(result.cause)(f"{named}{_pending(result)}", gtrid=result.gtrid, datasource=datasource)
    kind = {Outcome.ROLLED_BACK: TransactionRolledBack, Outcome.IN_DOUBT: TransactionInDoubt} | _HEURISTIC
    return kind[result.outcome](f"{result.gtrid}: {_describe(result)}", gtrid=result.gtrid, datasource=datasource)


def _describe(result: Result) -> str:
    because = "" if result.cause is None else f" ({_cause_text(result.cause)})"
    if result.outcome is Outcome.COMMITTED:
        return f"committed{_pending(result)}"
    if result.outcome is Outcome.ROLLED_BACK:
        return f"rolled back{because}; nothing that was done within it stays, or will appear{_pending(result)}"
    if result.outcome is Outcome.IN_DOUBT:
        return f"in doubt{because}: {_describe_doubt(result)}"
    ends = ", ".join(f"{name} {outcome.value}" for name, outcome in sorted(result.branch_outcomes.items()))
    if result.outcome is Outcome.HEURISTIC_HAZARD:
        lost = ", ".join(name for name, outcome in result.branch_outcomes.items() if outcome is BranchOutcome.LOST)
        what = f"a branch is gone from {lost}, and nothing shows how it ended"
    else:
        what = "a branch has ended otherwise than the transaction, by the program itself or by somebody else"
    where = _IN_THE_LOG if result.recorded else "No decision log has a record of it: look at the data."
    return f"{result.outcome.value}{because}: {what} ({ends}). {where}"


def _describe_doubt(result: Result) -> str:
    if result.resolvable:
        return (
            "the decision may or may not have been made. Nothing is lost: its branches stay prepared, this process "
            "goes on asking, and recovery will tell. `txpool-recovery show` has the details; do not do the work again "
            "before it is settled."
        )
    names = ", ".join(result.branch_outcomes) or "the database"
    if BranchOutcome.LOST in result.branch_outcomes.values():
        what = f"a part of it is committed, or may be, and only the data in {names} can tell which."
    else:
        what = (
            "the reply to the only COMMIT was lost, so it is committed or rolled back as a whole, and only the data in "
            f"{names} can tell which."
        )
    return f"{what} Look there before you do it again."


def _cause_text(cause: BaseException) -> str:
    """The error and its notes, which name the datasource if the driver's message does not."""
    told = str(cause).strip() if isinstance(cause, TransactionRolledBack) else described(cause)  # not its name: that is
    return "; ".join([told, *getattr(cause, "__notes__", ())])


_IN_THE_LOG = "The record is kept: see `txpool-recovery show`, repair by hand, then `txpool-recovery forget`."


def _pending(result: Result) -> str:
    if not result.pending:
        return ""
    return f" (recovery will finish {', '.join(result.pending)}, which could not be reached)"
