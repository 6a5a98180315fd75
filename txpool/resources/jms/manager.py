"""The resource manager of JMS: `driver = jms`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.base import BegunBy
from txpool.resources.manager import ResourceManager
from txpool.resources.outbox import OutboxContent

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.jms.branch import JmsBranch, JmsRecovery, JmsWork
    from txpool.resources.jms.driver import JmsDriver

#: The class of what the broker throws if its user lacks a right.
NO_RIGHT: Final = "jakarta.jms.JMSSecurityException"


class Jms(ResourceManager):
    """Queues and topics of Artemis, by its JMS client."""

    driver = "jms"
    database = "JMS"
    schemes = ("tcp://",)
    url_example = "tcp://broker:61616"
    requirement = "txpool[jms]"
    names_early = True
    instead_of_connecting = "it is a queue, and txpool.session() sends and receives there"
    session = "txpool.messages.jms:JmsSession"

    def check(self, settings: DataSourceSettings) -> None:
        values = settings.properties
        if ("queue" in values) == ("topic" in values):
            raise values.error("queue", "or topic is to be given, and not both: write queue = orders")
        if settings.queue is None:
            keys = ("parking", "parking.after")
            settings.refuse(keys, "has no use with topic, from which nothing is received: leave it out")
        # A broker has one queue of a name, whatever the address before it.
        if len({each.rpartition("::")[2] for each in (settings.queue or "", settings.parking_queue)}) == 1:
            raise values.error("parking", f"leads back to where it came from: {settings.parking_queue}")
        if not settings.jdbc_classpath:
            raise values.error("jdbc.classpath", "is missing: name the jars of Artemis's JMS client there")

    def begin(self, source: Source, transaction: BegunBy, timeout: float | None) -> tuple[JmsWork, JmsBranch]:
        from txpool.resources.jms.branch import JmsBranch, JmsWork

        driver = self.sessions(source)
        raw = driver.take()
        return JmsWork(raw), JmsBranch(source.name, driver, raw, transaction.deadlines)

    def sessions(self, source: Source) -> JmsDriver:
        """Its sessions: the same each time, until it is closed."""
        from txpool.resources.jms.driver import JmsDriver

        return source.kept("sessions", lambda: JmsDriver(source.settings), JmsDriver.close_idle)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> JmsRecovery:
        from txpool.resources.jms.branch import JmsRecovery
        from txpool.resources.jms.driver import JmsDriver

        return JmsRecovery(JmsDriver(settings, recovery=True), trusted=settings.trusts_anybody)

    def is_outage(self, error: BaseException) -> bool:
        return getattr(error, "java_class", "") == NO_RIGHT  # whose user a file names

    def look(self, settings: DataSourceSettings) -> OutboxContent:
        """What is in the queue of a session, and in the one of its parked messages; as recovery.user."""
        from txpool.resources.jms.driver import JmsDriver

        with JmsDriver(settings, recovery=True).lent() as raw:
            waiting, oldest, _ = raw.look(settings.queue or "")
            parked, _, error = raw.look(settings.parking_queue)
            raw.drop()
        return OutboxContent(waiting + parked, parked, oldest, error)

    def workload(self, source: Source) -> Any:
        from txpool.resources.jms.workload import QueueWork

        return QueueWork(self.sessions(source), source.settings.queue or "")

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.jms.driver import JmsDriver

        driver = JmsDriver(settings, recovery=True)
        try:
            raw = driver.connect(timeout)
        except Exception as error:
            yield failure("connection", f"{settings.name} does not answer: {described(error)}")
            return
        try:
            if settings.queue is not None:
                raw.queue(settings.queue)
                raw.exists(settings.parking_queue, sends=True)
            else:
                raw.topic(settings.topic)
            count = len(raw.database.listed(raw))
        except Exception as error:
            yield failure("queue", str(error))
            return
        finally:
            raw.drop()
        yield ok("connection", f"{settings.name} answers, and keeps what is prepared; {count} branches are there")
        if not settings.trusts_anybody:
            yield warning(
                "owners",
                "the broker does not tell who has begun a branch",
                "recovery commits what is decided, and leaves the rest prepared: its messages stay hidden",
                "if all who can connect are trusted, write prepared.owners = any",
            )


MANAGER = Jms()
