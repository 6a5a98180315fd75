"""Which datasources may take part in one transaction together. What would not be atomic is refused; nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txpool.errors import LogError, ProgrammingError
from txpool.resources.base import Role

if TYPE_CHECKING:
    from txpool.sql.characteristics import Characteristics
    from txpool.tm.enlistment import TakesPart

WRITE_A_LOG = (
    "Write these two lines into conf/txpool.properties (or pass them to txpool.configure):\n"
    "    node.name = my-service-1\n    log.url = sqlite:///txlog\n"
    "and create the log once, by `txpool-recovery init` or by log.create = true"
)


class LogMissing(ProgrammingError, LogError):
    """A decision log is needed, and none is configured: no message is the reason, say."""


def require_atomic(
    gtrid: str, others: Sequence[TakesPart[Any]], datasource: TakesPart[Any], *, adopted: bool, logged: bool
) -> None:
    """ProgrammingError if a datasource cannot join the others, or prepared branches that were `adopted`."""
    datasources = [*others, datasource]
    local = next((each for each in datasources if each.role is Role.ALONE), None)
    unprepared = [each for each in datasources if each.role in (Role.MARKED, Role.LAST)]
    reason, kind = None, ProgrammingError
    if local is not None and (others or adopted):
        reason = f"{local.name} has mode=local, so it must be alone. Give it mode=cmr, in a file of its own"
    elif len(unprepared) > 1:
        first, second = unprepared[-2:]
        reason = (
            f"{first.name} (mode={first.mode}) and {second.name} (mode={second.mode}) cannot prepare, and only one "
            "such datasource can be in a transaction"
        )
    elif (others or adopted) and not logged:
        reason, kind = f"it is the second one, and two need a decision log. {WRITE_A_LOG}", LogMissing
    if reason is not None:
        raise kind(f"datasource {datasource.name} cannot join {gtrid}: {reason}. The transaction is as it was.")


def require_log(gtrid: str, name: str, *, logged: bool) -> None:
    """ProgrammingError without a decision log, if what is in it is prepared in any case."""
    if not logged:
        raise LogMissing(
            f"{name} cannot join {gtrid}: what is prepared there needs a decision log, by which recovery ends it after "
            f"a crash. {WRITE_A_LOG}"
        )


def require_begins_as(gtrid: str, datasource: TakesPart[Any], characteristics: Characteristics) -> None:
    """ProgrammingError if a datasource's database cannot begin as the transaction demands."""
    reason = datasource.why_not_begin(characteristics)
    if reason:
        raise ProgrammingError(
            f"datasource {datasource.name} cannot join {gtrid}, which was begun with {characteristics}: {reason}. "
            "The transaction is as it was."
        )


def require_adoptable(gtrid: str, others: Sequence[TakesPart[Any]], *, logged: bool) -> None:
    """ProgrammingError if branches that were prepared elsewhere cannot commit atomically with these datasources."""
    if not logged:
        raise ProgrammingError(f"{gtrid} cannot take over prepared branches: that needs a decision log. {WRITE_A_LOG}")
    local = next((each for each in others if each.role is Role.ALONE), None)
    if local is not None:
        raise ProgrammingError(
            f"{gtrid} cannot take over prepared branches: {local.name} takes part in it, and has mode=local, so "
            "it must be alone. Give it mode=cmr, in a file of its own"
        )


def require_same(gtrid: str, here: TakesPart[Any], other: TakesPart[Any]) -> None:
    """ProgrammingError unless two datasources of one name have the same url, as when a file was read twice."""
    if here.url != other.url:
        raise ProgrammingError(
            f"{gtrid}: two datasources are called {here.name}, {here.url} and {other.url}, and a transaction knows "
            "them by their names: give each a name of its own. The transaction is as it was."
        )
