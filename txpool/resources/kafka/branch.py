"""The branch of a transaction in Kafka, and recovery's access to such branches.

Messages wait here until PREPARE. Then they are sent in one transaction of the broker's, whose transactional id is the
branch's name, new for each branch: an id that is used again could let a late EndTxn commit the next transaction. The
decision has the producer id and the epoch, by which any process ends it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING

from txpool.errors import TransactionRolledBack, described
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, Refused
from txpool.resources.blocking import EndedWhenAwaited, OpenBlockingBranch, RecoveryOneByOne
from txpool.resources.own.resource import Work
from txpool.resources.recovery_access import LackOfRight, PreparedBranch
from txpool.xid import PREFIX, parse

if TYPE_CHECKING:
    from txpool.resources.kafka.records import Producer, Record
    from txpool.resources.kafka.requests import KafkaRequests, State

logger = logging.getLogger("txpool")

#: How long a step is tried again for what passes by itself, in seconds.
WAIT = 20.0
#: How long a commit that was answered may take until its messages can be read, in seconds.
_VISIBLE = 5.0
_PAUSE = 0.02

Parts = list[tuple[str, int]]


def evidence_of(producer: Producer, parts: Iterable[tuple[str, int]]) -> dict[str, str]:
    """What ends the transaction from any process, and where it has sent to."""
    topics: dict[str, list[str]] = defaultdict(list)
    for topic, part in sorted(set(parts)):
        topics[topic].append(str(part))
    named = ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items())
    return {"producer": str(producer.id), "epoch": str(producer.epoch), "parts": named}


def _parts_in(evidence: Mapping[str, str]) -> Parts:
    topics = (each.partition(":") for each in evidence.get("parts", "").split(";") if each)
    return [(topic, int(number)) for topic, _, numbers in topics for number in numbers.split(",")]


class KafkaWork(Work):
    """The messages of one transaction, which wait for its PREPARE."""

    def __init__(self, requests: KafkaRequests) -> None:
        self._requests = requests
        self.records: list[Record] = []
        self.evidence: Mapping[str, str] = {}  #: What its branch's record has, once it is prepared.

    @property
    def idle(self) -> bool:
        return not self.records

    def send(self, record: Record) -> None:
        """Send it with the others."""
        self.require_active()
        self.records.append(record)

    def prepare(self, xid: str) -> None:
        from kafka.errors import RecordListTooLargeError

        from txpool.resources.kafka.records import BATCHES

        timeout, deadline = self._requests.longest(), time.monotonic() + WAIT
        if self._requests.state(xid, deadline) is not None:
            raise Refused(f"the transactional id {xid} is taken")  # to begin under it would end the other's
        for size in BATCHES:
            producer = self._requests.begin(xid, timeout, deadline)  # which ends what was sent before
            with suppress(RecordListTooLargeError):
                self._requests.send(producer, self.records, deadline, size=size)
                break
        self.evidence = evidence_of(producer, ((each.topic, each.part) for each in self.records))

    def rollback(self) -> None:
        self.records.clear()


class KafkaBranch(OpenBlockingBranch):
    """The branch of a transaction in Kafka."""

    listed_in_part = True
    _work: KafkaWork

    def __init__(self, requests: KafkaRequests, work: KafkaWork, location: PrepareLocation, gtrid: str) -> None:
        super().__init__(work, location, gtrid)
        self._requests = requests

    def start_prepare(self) -> None:
        self._begun = True
        xid = self.record.xid
        try:
            self._work.prepare(xid.joined)
        except Exception as error:
            self._begun = not isinstance(error, Refused)
            raise TransactionRolledBack(
                f"{self.datasource}: the messages of {xid.gtrid} could not be sent, and it rolls back: "
                f"{described(error)}",
                gtrid=xid.gtrid,
                datasource=self.datasource,
            ) from error
        self.record = self.record._replace(evidence=self._work.evidence)
        self._prepared = True

    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        return end_branch(self._requests, self.record, commit=commit)

    def start_rollback(self) -> None:
        if self._prepared:
            super().start_rollback()

    def await_rollback(self) -> BranchOutcome:
        if self._prepared:
            return super().await_rollback()
        self._work.rollback()
        if not self._begun:
            return BranchOutcome.ROLLED_BACK
        try:  # what was sent without an answer may come late: a new epoch ends it, and refuses the rest
            self._requests.begin(self.record.xid.joined, self._requests.longest(), time.monotonic() + WAIT)
        except Exception as error:
            logger.warning("%s: %s is left to recovery: %s", self.datasource, self.record.xid.joined, described(error))
            return BranchOutcome.UNKNOWN
        return BranchOutcome.ROLLED_BACK


def end_branch(requests: KafkaRequests, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
    """End a prepared branch: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""
    try:
        identity = requests.cluster()
        if record.identity and record.identity != identity:
            return BranchOutcome.UNKNOWN, f"the url leads to another cluster now: {identity}, not {record.identity}"
        producer = _producer_of(record)
        if producer is not None:
            return _end(requests, producer, _parts_in(record.evidence), commit=commit)
        found = requests.state(record.xid.joined, time.monotonic() + WAIT)  # it was listed, or never prepared
        if found is None:
            return BranchOutcome.LOST, ""
        if not commit:
            return _end(requests, found.producer, [], commit=False)
    except Exception as error:
        return BranchOutcome.UNKNOWN, _why(error)
    return BranchOutcome.UNKNOWN, "its record has no producer id and epoch, by which it could be committed"


def _end(requests: KafkaRequests, producer: Producer, parts: Parts, *, commit: bool) -> tuple[BranchOutcome, str]:
    refused = requests.end(producer, time.monotonic() + WAIT, commit=commit)
    if refused:
        state = requests.state(producer.transactional_id, time.monotonic() + WAIT)
        return _ended(state, producer, refused, commit=commit)
    left = _left_open(requests, producer, parts) if commit else ""
    if left:
        return BranchOutcome.UNKNOWN, left
    return (BranchOutcome.COMMITTED if commit else BranchOutcome.ROLLED_BACK), ""


def _producer_of(record: BranchRecord) -> Producer | None:
    from txpool.resources.kafka.records import Producer

    try:
        return Producer(record.xid.joined, int(record.evidence["producer"]), int(record.evidence["epoch"]))
    except (KeyError, ValueError):
        return None


def _ended(found: State | None, producer: Producer, refused: str, *, commit: bool) -> tuple[BranchOutcome, str]:
    """How a transaction has ended that the broker has refused to end, with this error."""
    if found is None or found.producer.id != producer.id:
        return BranchOutcome.LOST, ""
    if found.state == "CompleteCommit":  # of another epoch it is another's, who has begun under this id
        return (BranchOutcome.COMMITTED if found.producer == producer else BranchOutcome.LOST), ""
    if found.state == "CompleteAbort":  # as the broker does when its timeout is over
        return BranchOutcome.ROLLED_BACK, ""
    if found.state == "Empty":  # nothing was sent; or another has begun under this id, which ended it
        return (BranchOutcome.ROLLED_BACK if not commit and found.producer == producer else BranchOutcome.LOST), ""
    why = f"the broker has refused to end it ({refused}), and says that it is {found.state}"
    return BranchOutcome.UNKNOWN, LackOfRight(why) if refused.endswith("AUTHORIZATION_FAILED") else why


def _left_open(requests: KafkaRequests, producer: Producer, parts: Parts) -> str:
    """Empty once every partition has the commit; else what is wrong.

    A broker that was killed behind its answer may leave a partition open for ever (KAFKA-20734): its readers see
    nothing of what follows. If the rights allow, the missing markers are written here.
    """
    from kafka.errors import KafkaError, UnknownTopicOrPartitionError

    deadline, written = time.monotonic() + _VISIBLE, False
    while True:
        try:
            parts = requests.left_open(producer, parts)
        except UnknownTopicOrPartitionError:
            parts, sent = [], parts
            for part in sent:
                try:
                    parts += requests.left_open(producer, [part])
                except UnknownTopicOrPartitionError:
                    logger.warning("%s: %s partition %d is gone, and its messages with it", producer, *part)
        if not parts:
            return ""
        if time.monotonic() >= deadline:
            if written:
                return f"it is committed, and still open in {parts}"
            state = requests.state(producer.transactional_id, time.monotonic() + WAIT)
            if state is None or state.state != "CompleteCommit":
                return f"it is being committed, and open in {parts}"
            try:
                requests.write_markers(producer, parts, time.monotonic() + WAIT, commit=True)
            except KafkaError as error:
                return _why(
                    error,
                    f"it is committed, and its messages are hidden in {parts}, as after KAFKA-20734; writing its "
                    "markers needs the right ClusterAction: ",
                )
            logger.warning("%s: the markers of its commit were missing in %s, and were written", producer, parts)
            deadline, written = time.monotonic() + _VISIBLE, True
        time.sleep(_PAUSE)


def _why(error: Exception, text: str = "") -> str:
    from kafka.errors import AuthorizationError

    why = f"{text}{described(error)}"
    return LackOfRight(why) if isinstance(error, AuthorizationError) else why


class KafkaRecovery(RecoveryOneByOne):
    """Recovery's access to the branches in a cluster. Thread-safe: every method enters `connected()`, and leaves it."""

    def __init__(self, connected: Callable[[], AbstractContextManager[KafkaRequests]], *, trusted: bool) -> None:
        super().__init__()
        self._connected = connected
        #: None: whoever can connect is one of ours. Else nobody is proven to be.
        self._roles: frozenset[str] | None = None if trusted else frozenset()

    def identity(self) -> str:
        with self._connected() as requests:
            return requests.cluster()

    def recover(self) -> list[PreparedBranch]:
        found = []
        with self._connected() as requests:
            for name in requests.listed(f"{PREFIX}:"):
                xid, state = parse(name), requests.state(name, time.monotonic() + WAIT)
                if xid is not None and state is not None and state.state in ("Ongoing", "PrepareCommit"):
                    evidence = evidence_of(state.producer, state.parts)
                    found.append(PreparedBranch(xid, roles=self._roles, evidence=evidence))
        return found

    def phase_two(self) -> EndedWhenAwaited:
        """The end of a pass's branches, over one client."""
        shared = ExitStack()
        requests = shared.enter_context(self._connected())
        access = KafkaRecovery(lambda: nullcontext(requests), trusted=False)
        access._failures = self._failures
        return EndedWhenAwaited(access, shared.close)

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        try:
            with self._connected() as requests:
                return end_branch(requests, record, commit=commit)
        except Exception as error:
            return BranchOutcome.UNKNOWN, _why(error)
