"""The outboxes of datasources: how many messages wait there, and which are parked. Nothing is locked or written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from recovery.scan.datasources.asking import collect
from recovery.scan.datasources.datasources import RecoverableDatasource, RecoveryDatasources
from txpool.errors import ConfigurationError
from txpool.resources.outbox import OutboxContent

#: In `recovery.outboxes`: those whose files name a function that delivers.
EVERY, NONE = "*", "none"
_LONGEST = 200  # characters of an error


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """An outbox as a scan has found it. The numbers are None if it could not be read."""

    datasource: str
    #: How many messages are neither delivered nor parked.
    waiting: int | None = None
    #: The seconds since the first of those was sent; None if there is none.
    oldest: float | None = None
    parked: int | None = None
    #: Of the message that was sent last among those that are parked.
    last_error: str | None = None
    #: Why it could not be read; else empty.
    reason: str = ""


def require_known(names: Collection[str], datasources: Collection[RecoverableDatasource]) -> None:
    """Raise ConfigurationError if `recovery.outboxes` names a datasource that recovery does not have."""
    unknown = sorted({*names} - {EVERY, NONE} - {each.name for each in datasources})
    if unknown:
        raise ConfigurationError(
            f"recovery.outboxes names {', '.join(unknown)}, and recovery has no such datasource: write names of its "
            "datasources, *, or none"
        )


def outboxes(datasources: RecoveryDatasources, names: Collection[str]) -> tuple[OutboxStatus, ...]:
    """The outboxes of those datasources, read at the same time, each within its time."""
    looks = {each.name: _look(each) for each in datasources.configured if _is_meant(each, names)}
    started = {name: datasources.asking.start(name, look) for name, look in looks.items()}
    found, errors = collect(started)
    return tuple(_status(name, found.get(name), errors.get(name, "it has no outbox")) for name in looks)


def shortened(error: str | None) -> str:
    """An error in one line, for people."""
    text = " ".join("".join(each if each.isprintable() else " " for each in error or "").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _is_meant(datasource: RecoverableDatasource, names: Collection[str]) -> bool:
    if EVERY not in names:
        return datasource.name in names
    settings = getattr(datasource, "settings", None)
    return getattr(settings, "outbox_deliver", None) is not None


def _look(datasource: RecoverableDatasource) -> Callable[[], OutboxContent | None]:
    look: Callable[[], OutboxContent | None] = getattr(datasource, "look_into_outbox", _nothing)
    return look


def _nothing() -> None:
    return None


def _status(name: str, content: OutboxContent | None, reason: str) -> OutboxStatus:
    if content is None:
        return OutboxStatus(name, reason=reason)
    return OutboxStatus(name, content.total - content.parked, content.oldest, content.parked, content.last_error)
