"""The resource manager of `driver = sql-queue`: a queue in a table of a datasource, whose branches carry its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from txpool.findings.finding import Finding, ok
from txpool.resource_managers import QUEUE
from txpool.resources.manager import ResourceManager
from txpool.resources.recovery_access import NothingPrepared

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings


class Queues(ResourceManager):
    """Queues. They prepare nothing by themselves: what they send and receive is in their datasource's branches."""

    driver = QUEUE
    database = "queues"
    schemes = (f"{QUEUE}:",)
    url_example = f"{QUEUE}:orders.properties"
    instead_of_connecting = "it is a queue, and txpool.session() sends and receives there"
    session = "txpool.messages.queue:QueueSession"

    def check(self, settings: DataSourceSettings) -> None:
        for key, example in (("queue", "orders"), ("queue.datasource", "orders.properties")):
            if key not in settings.properties:
                raise settings.properties.error(key, f"is missing: write {key} = {example}")

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> NothingPrepared:
        return NothingPrepared(settings.name)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        yield ok("connection", f"{settings.name} is a queue in {settings.queue_datasource}: check that file, too")


MANAGER = Queues()
