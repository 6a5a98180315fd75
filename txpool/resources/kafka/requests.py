"""The requests of Kafka's transactions, over kafka-python, whose private parts only this file and `reader.py` use.

The public producer ends a transaction only in the process that began it. EndTxn itself takes the transactional id, the
producer id and the epoch from anybody. kafka-python has these messages: what is missing is a public way to send them.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaAdminClient, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)
from kafka.structs import TopicPartition

from txpool.errors import OperationalError, described
from txpool.resources.kafka.records import BATCHES, TOO_LONG, Producer, Record, is_one, rounds_of

T = TypeVar("T")

#: What passes by itself.
_TRY_AGAIN = (
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    errors.CoordinatorLoadInProgressError,
    errors.ConcurrentTransactionsError,
    errors.NotLeaderForPartitionError,
    errors.LeaderNotAvailableError,
    errors.KafkaConnectionError,
    errors.NodeNotReadyError,
    errors.RequestTimedOutError,
    errors.KafkaTimeoutError,
)
_PAUSE = 0.02
#: For how many seconds a question is asked again.
_BACK = 10.0
#: The first version of InitProducerId with two-phase commit (KIP-939).
_TWO_PHASE = 6
_TIMEOUT, _MOST = "transaction.max.timeout.ms", "socket.request.max.bytes"
#: The timeout of a producer that has none.
_NEVER = 2**31 - 1
#: For how long a broker's setting is taken to be the same, in seconds.
_KNOWN_FOR = 60.0


class State(NamedTuple):
    """What the broker says of a transactional id."""

    state: str  #: Ongoing, PrepareCommit, CompleteAbort, …
    producer: Producer
    parts: frozenset[tuple[str, int]]


class KafkaRequests:
    """Requests to one cluster. Thread-safe: a thread of kafka-python's does the I/O. A fork gets one of its own."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._address = address
        #: Without those that are a consumer's alone.
        self._options = {key: value for key, value in options.items() if key in KafkaAdminClient.DEFAULT_CONFIG}
        #: By the process, and by the client that each replaces.
        self._clients: dict[tuple[int, KafkaAdminClient | None], KafkaAdminClient] = {}
        self._longest = (0.0, 0.0)
        self.most = 100 * 1024 * 1024  #: How many bytes of a request the broker takes: else it ends the connection.
        self._refused_two_phase = False

    def client(self) -> KafkaAdminClient:
        """kafka-python's client of this process. OperationalError if no broker answers."""
        key: tuple[int, KafkaAdminClient | None] = (os.getpid(), None)
        while (found := self._clients.get(key)) is not None and found._manager._net._exception is not None:
            key = os.getpid(), found  # its thread has ended, and takes nothing
        if found is None:
            made = connected(KafkaAdminClient, self._address, **self._options)
            found = self._clients.setdefault(key, made)
            if found is not made:
                made.close()
        return found

    def close(self) -> None:
        """Close this process's connections."""
        for key in [each for each in self._clients.copy() if each[0] == os.getpid()]:
            with suppress(Exception):  # if its thread has ended, or another closes it
                self._clients.pop(key).close()

    # -- the cluster --------------------------------------------------------------------------------------------

    def _asked(self, ask: Callable[[KafkaAdminClient], T]) -> T:
        """What a broker answers. It is asked again if it is only just gone."""
        return _until(time.monotonic() + _BACK, lambda: ask(self.client()))

    def cluster(self) -> str:
        """The cluster's id."""
        return str(self._asked(lambda client: client.describe_cluster())["cluster_id"])

    def longest(self) -> float:
        """After how many seconds the broker ends a transaction by itself; inf: never. Asked again each minute."""
        value, at = self._longest
        if value and time.monotonic() - at < _KNOWN_FOR:
            return value
        found = self.settings(_TIMEOUT, "transaction.two.phase.commit.enable", _MOST)
        if _TIMEOUT not in found:
            raise OperationalError(f"the user lacks the right DescribeConfigs on the cluster at {self._address}")
        self.most = int(found.get(_MOST, self.most))
        seconds, version = float(found[_TIMEOUT]) / 1000, 0
        if found.get("transaction.two.phase.commit.enable") == "true" and not self._refused_two_phase:
            with suppress(errors.IncompatibleBrokerVersion):  # unstable.api.versions.enable is needed for it, too
                version = self.client()._manager.broker_version_data.api_version(InitProducerIdRequest)
        self._longest = (inf if version >= _TWO_PHASE else seconds), time.monotonic()
        return self._longest[0]

    def settings(self, *keys: str, topic: str = "") -> dict[str, str]:
        """Those of these settings that a topic has, or a broker."""
        kind = ConfigResourceType.TOPIC if topic else ConfigResourceType.BROKER
        name = topic or str(self._asked(lambda client: client.describe_cluster())["brokers"][0]["broker_id"])
        asked = ConfigResource(kind, name, dict.fromkeys(keys, ""))
        (found,) = self._asked(lambda client: client.describe_configs([asked], config_filter="all")).values()
        return {key: str(each["value"]) for key, each in found[name].items()}

    def parts(self, topic: str) -> int:
        """How many partitions a topic has. OperationalError if there is no such topic."""
        return len(self.replicas(topic))

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now; None if none has."""
        found = self._topic(topic)
        return str(found["topic_id"]) if found["partitions"] else None

    def _topic(self, topic: str) -> Any:
        try:
            (found,) = self._asked(lambda client: client.describe_topics([topic]))
        except errors.UnknownTopicOrPartitionError:
            return {"partitions": []}
        return found

    def replicas(self, topic: str) -> list[int]:
        """How many replicas each partition of a topic has. OperationalError if there is no such topic."""
        found = self._topic(topic)
        if not found["partitions"]:
            missing = f"there is no topic {topic} at {self._address}, or its user may not see it"
            raise OperationalError(missing) from errors.UnknownTopicOrPartitionError()
        return [len(each.get("replica_nodes", ())) for each in found["partitions"]]

    # -- a transaction ------------------------------------------------------------------------------------------

    def begin(self, transactional_id: str, timeout: float, deadline: float) -> Producer:
        """A producer of this id. The broker ends its transaction by itself `timeout` seconds after its first record.

        With `inf` it does not, by two-phase commit: if that is refused, later transactions are told the broker's.
        """
        two_phase = timeout == inf
        versions = {"min_version": _TWO_PHASE} if two_phase else {"max_version": 4}

        async def ask(manager: Any) -> Producer:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=_NEVER if two_phase else int(timeout * 1000),
                enable2_pc=two_phase,
                **versions,
            )
            answer = await manager.send(request, await _coordinator(manager, transactional_id))
            _require(answer.error_code)
            return Producer(transactional_id, answer.producer_id, answer.producer_epoch)

        try:
            return self._until(deadline, ask)
        except errors.TransactionalIdAuthorizationFailedError:
            self._refused_two_phase, self._longest = two_phase, (0.0, 0.0)
            raise

    def send(self, producer: Producer, records: Sequence[Record], deadline: float, *, size: int = BATCHES[0]) -> None:
        """Send them in the producer's transaction, and wait until all replicas in sync have each.

        A batch has so many bytes, or one record.
        Errors: kafka-python's; RecordListTooLargeError if shorter batches may be taken.
        """
        rounds = rounds_of(producer, records, size, int(0.99 * self.most))  # the rest is for names
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, part in {each[:2] for each in records}:
            topics[topic].append(part)

        async def add(manager: Any) -> None:
            named = [
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=parts)
                for topic, parts in topics.items()
            ]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=named,
                max_version=3,
            )
            answer = await manager.send(request, await _coordinator(manager, producer.transactional_id))
            for topic in answer.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    _require(part.partition_error_code)

        self._until(deadline, add)
        for together in rounds:
            # A batch that the broker has already is acknowledged again, by its producer and its sequence number.
            self._until(deadline, lambda manager, sent=together: self._produce(manager, producer, sent))  # type: ignore[misc]

    async def _produce(self, manager: Any, producer: Producer, batches: Mapping[tuple[str, int], bytes]) -> None:
        leaders = await self.client()._async_get_leader_for_partitions([TopicPartition(*each) for each in batches])
        sent = []
        for leader, places in leaders.items():
            topics: dict[str, list[Any]] = defaultdict(list)
            for place in places:
                data = ProduceRequest.TopicProduceData.PartitionProduceData(
                    index=place.partition, records=batches[place.topic, place.partition]
                )
                topics[place.topic].append(data)
            named = [ProduceRequest.TopicProduceData(name=topic, partition_data=data) for topic, data in topics.items()]
            request = ProduceRequest(
                transactional_id=producer.transactional_id,
                acks=-1,
                timeout_ms=30_000,
                topic_data=named,
                min_version=3,
                max_version=9,
            )
            sent.append(manager.send(request, leader))
        together: Exception | None = None
        for answer in [await each for each in sent]:
            for topic in answer.responses:
                for part in topic.partition_responses:
                    place = f"topic {topic.name}, partition {part.index}"
                    if errors.for_code(part.error_code) not in TOO_LONG:
                        _require(part.error_code, errors.DuplicateSequenceNumberError, place=place)
                    elif is_one(batches[topic.name, part.index]):
                        raise errors.MessageSizeTooLargeError(place)
                    else:
                        together = errors.RecordListTooLargeError(place)
        if together is not None:
            raise together

    def end(self, producer: Producer, deadline: float, *, commit: bool) -> str:
        """End the producer's transaction, as anybody may who knows it: empty, or the name of the broker's error."""

        async def ask(manager: Any) -> str:
            request = EndTxnRequest(
                transactional_id=producer.transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                committed=commit,
                max_version=3,
            )
            answer = await manager.send(request, await _coordinator(manager, producer.transactional_id))
            error = errors.for_code(answer.error_code)
            if issubclass(error, _TRY_AGAIN):
                raise error
            return "" if error is errors.NoError else str(error.message)

        return self._until(deadline, ask)

    def state(self, transactional_id: str, deadline: float) -> State | None:
        """What the coordinator says of an id; None if it does not know it."""

        async def ask(manager: Any) -> State | None:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            (found,) = (await manager.send(request, await _coordinator(manager, transactional_id))).transaction_states
            if errors.for_code(found.error_code) is errors.TransactionalIdNotFoundError:
                return None
            _require(found.error_code)
            producer = Producer(transactional_id, found.producer_id, found.producer_epoch)
            parts = frozenset((topic.topic, part) for topic in found.topics for part in topic.partitions)
            return State(found.transaction_state, producer, parts)

        return self._until(deadline, ask)

    def listed(self, prefix: str) -> list[str]:
        """The ids with this beginning whose transactions are open, or are being committed."""
        found = self._asked(lambda client: client.list_transactions(state_filters=["Ongoing", "PrepareCommit"]))
        names = [each.transactional_id for listings in found.values() for each in listings]
        return [each for each in names if each.startswith(prefix)]

    def left_open(self, producer: Producer, parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """The partitions in which a transaction of this producer is open."""
        places = [TopicPartition(*each) for each in parts]
        found = self._asked(lambda client: client.describe_producers(places))
        return [
            (place.topic, place.partition)
            for place, state in found.items()
            if any(
                each.producer_id == producer.id and each.current_transaction_start_offset >= 0
                for each in state.active_producers
            )
        ]

    def write_markers(
        self, producer: Producer, parts: Iterable[tuple[str, int]], deadline: float, *, commit: bool
    ) -> None:
        """Write the markers that the coordinator has not: needs the right ClusterAction. Errors: kafka-python's."""

        async def ask(manager: Any) -> None:
            marker = WriteTxnMarkersRequest.WritableTxnMarker
            leaders = await self.client()._async_get_leader_for_partitions([TopicPartition(*each) for each in parts])
            for leader, places in leaders.items():
                topics = [
                    marker.WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])
                    for place in places
                ]
                written = marker(
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    transaction_result=commit,
                    topics=topics,
                    coordinator_epoch=-1,
                )
                answer = await manager.send(WriteTxnMarkersRequest(markers=[written]), leader)
                for result in answer.markers:
                    for topic in result.topics:
                        for part in topic.partitions:
                            _require(part.error_code)

        self._until(deadline, ask)

    def _until(self, deadline: float, ask: Callable[[Any], Awaitable[T]]) -> T:
        def run() -> T:
            manager = self.client()._manager
            found: T = manager.run(ask, manager)
            return found

        return _until(deadline, run)


def _until(deadline: float, ask: Callable[[], T]) -> T:
    """Ask, and again for as long as the error passes by itself, until the deadline of the monotonic clock."""
    while True:
        try:
            return ask()
        except _TRY_AGAIN:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def connected(kind: type[T], address: str, *arguments: str, **options: Any) -> T:
    """A client of kafka-python's. OperationalError if no broker answers."""
    made: Any = kind.__new__(kind)
    try:
        made.__init__(*arguments, bootstrap_servers=address, **options)
    except BaseException as error:
        with suppress(Exception):  # its thread and sockets would stay
            made._client.close()
        if isinstance(error, errors.KafkaError) and not isinstance(error, errors.KafkaConfigurationError):
            raise OperationalError(f"no broker at {address} answers: {described(error)}") from error
        raise
    found: T = made
    return found


async def _coordinator(manager: Any, transactional_id: str) -> int:
    """The broker that coordinates this id. kafka-python's own look would keep each id for ever."""
    request = FindCoordinatorRequest(
        key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=[transactional_id], min_version=4
    )
    (found,) = (await manager.send(request)).coordinators
    _require(found.error_code)
    return int(found.node_id)


def _require(code: int, *harmless: type[Exception], place: str = "") -> None:
    error = errors.for_code(code)
    if error is not errors.NoError and error not in harmless:
        raise error(*filter(None, [place]))
