"""Outboxes and sessions: how many messages wait there, and which are parked. Nothing is locked or written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from recovery.scan.datasources.asking import collect
from recovery.scan.datasources.datasources import RecoverableDatasource, RecoveryDatasources
from txpool.config.settings import DataSourceSettings
from txpool.datasource import open_settings
from txpool.datasource.datasource import as_database
from txpool.errors import ConfigurationError
from txpool.resources.driver.making import make_driver
from txpool.resources.jms.manager import MANAGER as JMS
from txpool.resources.kafka.manager import parking_topic
from txpool.resources.messages.tables import tables_of
from txpool.resources.outbox import OutboxContent, outbox_table

#: In `recovery.outboxes`: those whose files say who delivers, and sessions.
EVERY, NONE = "*", "none"
_LONGEST = 200  # characters of an error


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """An outbox or a session as a scan has found it. The numbers are None if it could not be read."""

    datasource: str
    #: How many messages are neither delivered nor parked; None also if only a broker knows.
    waiting: int | None = None
    #: The seconds since the first of those was sent; None if there is none.
    oldest: float | None = None
    parked: int | None = None
    #: Of the message that was sent last among those that are parked.
    last_error: str | None = None
    #: Why it could not be read; else empty.
    reason: str = ""
    #: outbox, or session.
    kind: str = "outbox"


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
    sessions = {each.name for each in datasources.configured if _session_of(each)}
    return tuple(
        _status(
            name,
            found.get(name),
            errors.get(name, "it has no outbox"),
            "session" if name in sessions else "outbox",
        )
        for name in looks
    )


def shortened(error: str | None) -> str:
    """An error in one line, for people."""
    text = " ".join("".join(each if each.isprintable() else " " for each in error or "").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _is_meant(datasource: RecoverableDatasource, names: Collection[str]) -> bool:
    if EVERY not in names:
        return datasource.name in names
    settings = getattr(datasource, "settings", None)
    return getattr(settings, "outbox_deliver", None) is not None or _session_of(datasource) is not None


def _session_of(datasource: RecoverableDatasource) -> DataSourceSettings | None:
    """The settings of a session that receives, and whose parked messages can be counted; None if it is none."""
    settings = getattr(datasource, "settings", None)
    if not isinstance(settings, DataSourceSettings) or not (settings.queue or settings.group):
        return None
    if settings.group and parking_topic(settings):
        return None  # the broker alone knows
    return settings if settings.queue or settings.offsets_datasource else None


def _look(datasource: RecoverableDatasource) -> Callable[[], OutboxContent | None]:
    session = _session_of(datasource)
    if session is not None:
        return partial(_look_into_session, session)
    look: Callable[[], OutboxContent | None] = getattr(datasource, "look_into_outbox", _nothing)
    return look


def _look_into_session(settings: DataSourceSettings) -> OutboxContent | None:
    """What waits in its queue, and what its consumer has parked; as recovery.user of that datasource."""
    path = settings.queue_datasource or settings.offsets_datasource
    if path is None:  # its broker has both queues
        return JMS.look(settings)
    # Each time anew: the daemon may have been told to read its files again.
    with closing(open_settings(DataSourceSettings.load_without_idle(path))) as opened:
        source = as_database(opened)
        part = source.resource_manager.outbox
        if part is None:
            return None
        driver = make_driver(source.settings, recovery=True)
        with outbox_table(part).looking(driver) as raw:
            return tables_of(source).look(raw, driver, source.name, settings.queue, settings.parking_queue)


def _nothing() -> None:
    return None


def _status(name: str, content: OutboxContent | None, reason: str, kind: str) -> OutboxStatus:
    if content is None:
        return OutboxStatus(name, reason=reason, kind=kind)
    waiting = None if content.total is None else content.total - content.parked
    return OutboxStatus(name, waiting, content.oldest, content.parked, content.last_error, kind=kind)
