"""Who may take part in one transaction: what could not be kept atomic is refused, and nothing has changed then."""

from __future__ import annotations

from collections.abc import Sequence

from txpool.errors import ProgrammingError
from txpool.resources.base import Role
from txpool.tm.participants import Enlistable

WRITE_A_LOG = (
    "Write these two lines into conf/txpool.properties (or pass them to txpool.configure):\n"
    "    node.name = my-service-1\n    log.url = sqlite:///txlog\n"
    "and create the log once, by `txpool-recovery init` or by log.create = true"
)


def require_atomic(
    gtrid: str, others: Sequence[Enlistable], datasource: Enlistable, *, adopted: bool, logged: bool
) -> None:
    """ProgrammingError where a datasource cannot join the others, or prepared branches that were `adopted`."""
    everyone = [*others, datasource]
    alone = next((each for each in everyone if each.role is Role.ALONE), None)
    unprepared = [each for each in everyone if each.role in (Role.MARKED, Role.LAST)]
    why = None
    if alone is not None and (others or adopted):
        why = f"{alone.name} (mode=local) can neither prepare nor be marked, so it must be alone. Give it mode=cmr"
    elif len(unprepared) > 1:
        first, second = unprepared[-2:]
        why = (
            f"{first.name} (mode={first.mode}) and {second.name} (mode={second.mode}) cannot prepare, and only one "
            "such datasource can be in a transaction"
        )
    elif (others or adopted) and not logged:
        why = f"it is the second one, and two need a decision log. {WRITE_A_LOG}"
    if why is not None:
        raise ProgrammingError(
            f"datasource {datasource.name} cannot join {gtrid}: {why}. The transaction is as it was."
        )


def require_adoptable(gtrid: str, others: Sequence[Enlistable], *, logged: bool) -> None:
    """ProgrammingError where branches that were prepared elsewhere cannot be decided with these."""
    if not logged:
        raise ProgrammingError(f"{gtrid} cannot take over prepared branches: that needs a decision log. {WRITE_A_LOG}")
    alone = next((each for each in others if each.role is Role.ALONE), None)
    if alone is not None:
        raise ProgrammingError(
            f"{gtrid} cannot take over prepared branches: {alone.name} (mode=local) is in it, which can neither "
            "prepare nor be marked, so it must be alone. Give it mode=cmr"
        )


def require_same(gtrid: str, here: Enlistable, other: Enlistable) -> None:
    """Two datasources of one name may be one file that was read twice, and no more. ProgrammingError."""
    if here.url != other.url:
        raise ProgrammingError(
            f"{gtrid}: two datasources are called {here.name}, {here.url} and {other.url}, and a transaction knows "
            "them by their names: give each a name of its own. The transaction is as it was."
        )
