"""The resource manager of Kafka: `driver = kafka`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from math import inf
from typing import TYPE_CHECKING, Any

from txpool.errors import ConfigurationError, described
from txpool.findings.finding import Finding
from txpool.resources.base import PrepareLocation
from txpool.resources.blocking import OneByOne
from txpool.resources.kafka.branch import KafkaBranch, KafkaRecovery, KafkaWork
from txpool.resources.kafka.timeouts import limit
from txpool.resources.manager import ResourceManager
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from kafka import KafkaConsumer

    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.deadlines import Deadlines
    from txpool.resources.kafka.requests import KafkaRequests
    from txpool.tm.transaction import Transaction

#: The arguments of kafka-python's consumer that are txpool's own: others would lose messages, or do them twice.
_OWN = ("bootstrap_servers", "group_id", "enable_auto_commit", "auto_offset_reset", "isolation_level")
#: What a file may say otherwise. A broker that was away is tried again after so many milliseconds at most, as Java's
#: client does: by the default of kafka-python it may be half a minute, and a PREPARE that waits gives up before.
_DEFAULTS = {"reconnect_backoff_max_ms": 1000, "bootstrap_timeout_ms": 10_000}


def parking_topic(settings: DataSourceSettings) -> str | None:
    """The topic for messages that a consumer could not do; None if they go into a queue of its datasource."""
    kind, _, topic = (settings.parking or "").partition(":")
    return topic if kind == "topic" else None


class Kafka(ResourceManager):
    """Topics of Kafka, from version 4.0 on."""

    driver = "kafka"
    database = "Kafka"
    schemes = ("kafka://",)
    url_example = "kafka://broker:9092"
    requirement = "txpool[kafka]"
    instead_of_connecting = "it is a topic, and txpool.session() sends and receives there"
    session = "txpool.messages.kafka:KafkaSession"

    def check(self, settings: DataSourceSettings) -> None:
        if "topic" not in settings.properties:
            raise settings.properties.error("topic", "is missing: write topic = orders")
        if settings.group is None:
            keys = ("offsets.datasource", "parking", "parking.after")
            settings.refuse(keys, "has no use without group, in which a session receives: write group, or leave it out")
        if parking_topic(settings) == "":
            raise settings.properties.error("parking", "names no topic: write parking = topic:orders-parked")
        for key in _OWN:
            if f"driver.{key}" in settings.properties:
                raise settings.properties.error(f"driver.{key}", "must stay as txpool sets it: leave it out")

    def begin(self, source: Source, transaction: Any, timeout: float | None) -> tuple[KafkaWork, KafkaBranch]:
        requests = self.requests_of(source)
        if not isinstance(transaction, Subordinate):  # a task's was limited on the driver
            limit(transaction, source.name, requests.longest())
        work = KafkaWork(requests)
        cluster = source.kept("cluster", requests.cluster)
        location = PrepareLocation(source.name, cluster, "", source.settings.file)
        return work, KafkaBranch(requests, work, location, transaction.gtrid)

    def before_job(self, source: Source, transaction: Transaction) -> None:
        if not source.settings.trusts_anybody:
            raise ConfigurationError(
                f"{source.name} takes no part in a Spark job: the broker does not tell who has begun a transaction, "
                "and the driver adopts only what is proven to be its tasks'. If nobody else can connect, or ACLs keep "
                "others from transactional ids that begin with txp1:, write prepared.owners = any. Nothing was sent"
            )
        limit(transaction, source.name, self.requests_of(source).longest())

    def ends_after(self, settings: DataSourceSettings) -> float | None:
        with closing(self._requests(settings)) as requests:
            longest = requests.longest()
        return None if longest == inf else longest

    def requests_of(self, source: Source) -> KafkaRequests:
        """The connections to its cluster: the same each time, until it is closed."""
        return source.kept("requests", lambda: self._requests(source.settings), lambda made: made.close())

    def consumer(self, settings: DataSourceSettings, *topics: str, **options: Any) -> KafkaConsumer:
        """A consumer that reads what is committed, and keeps no position. OperationalError if no broker answers."""
        from kafka import KafkaConsumer

        from txpool.resources.kafka.requests import connected

        return connected(
            KafkaConsumer,
            self._address(settings),
            *topics,
            enable_auto_commit=False,
            isolation_level="read_committed",
            **options,
            **self.options(settings),
        )

    def options(self, settings: DataSourceSettings) -> dict[str, Any]:
        """The arguments that every client of kafka-python's gets. ConfigurationError for one that none takes."""
        from kafka import KafkaAdminClient, KafkaConsumer

        known = {"user", "password", *KafkaConsumer.DEFAULT_CONFIG, *KafkaAdminClient.DEFAULT_CONFIG}
        options = {**_DEFAULTS, **settings.connect_options()}
        for each in sorted(options.keys() - known):
            raise settings.properties.error(f"driver.{each}", "is no argument of kafka-python's: leave it out")
        user, password = options.pop("user", None), options.pop("password", None)
        if user is not None:
            options = {"sasl_mechanism": "PLAIN", "security_protocol": "SASL_PLAINTEXT"} | options
            options |= {"sasl_plain_username": user, "sasl_plain_password": password}
        return options

    def _address(self, settings: DataSourceSettings) -> str:
        """The brokers, with commas between them, as kafka-python reads them."""
        return settings.url.removeprefix(self.schemes[0]).rpartition("@")[2].split("/")[0]

    def _requests(self, settings: DataSourceSettings) -> KafkaRequests:
        self.require_client(settings)
        from txpool.resources.kafka.requests import KafkaRequests

        return KafkaRequests(self._address(settings), self.options(settings))

    def require_client(self, settings: DataSourceSettings) -> None:
        """ConfigurationError if kafka-python is missing."""
        try:
            import kafka  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"datasource {settings.name}: driver = kafka needs kafka-python: pip install '{self.requirement}' "
                f"({described(error)})"
            ) from error

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> KafkaRecovery:
        return KafkaRecovery(lambda: closing(self._requests(settings)), trusted=settings.trusts_anybody)

    def adopting(self, source: Source, deadlines: Deadlines) -> OneByOne:
        trusted = source.settings.trusts_anybody
        return OneByOne(KafkaRecovery(lambda: nullcontext(self.requests_of(source)), trusted=trusted))

    def workload(self, source: Source) -> Any:
        from txpool.resources.kafka.workload import TopicWork

        return TopicWork(self, source)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.kafka.check import findings

        topics = [settings.properties["topic"], *filter(None, [parking_topic(settings)])]
        with closing(self._requests(settings)) as requests:
            yield from findings(settings, requests, self.branch_recovery(settings), topics, timeout=timeout)


MANAGER = Kafka()
