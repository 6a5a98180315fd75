"""What `txpool check` finds out about a topic and its cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from txpool.errors import described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.kafka.timeouts import most
from txpool.xid import PREFIX

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.kafka.requests import KafkaRequests
    from txpool.resources.recovery_access import BranchRecovery

_DAY = 86_400.0
_COPIES = "transaction.state.log.replication.factor"
_IN_SYNC = "min.insync.replicas"
_LOG_IN_SYNC = "transaction.state.log.min.isr"
_EXPIRATION = "transactional.id.expiration.ms"


def findings(
    settings: DataSourceSettings,
    requests: KafkaRequests,
    recovery: BranchRecovery,
    topics: Sequence[str],
    *,
    timeout: float | None,
) -> Iterator[Finding]:
    """The findings about a session's topics, the first of which is its own.

    `timeout` is the configured one of transactions, None if there is none.
    """
    topic = topics[0]
    try:
        cluster, longest = requests.cluster(), requests.longest()
        copies = {each: requests.replicas(each) for each in topics}
        count = len(recovery.recover())
    except Exception as error:
        yield failure("connection", f"{settings.name} does not answer: {described(error)}")
        return
    found = f"{settings.name} answers, and is cluster {cluster}; topic {topic} has {len(copies[topic])} partitions"
    yield ok("connection", f"{found}; {count} branches are prepared there")
    yield _of_timeout(longest, timeout)
    for each in topics:
        yield from _of_reading(requests, each)
    try:
        brokers = requests.settings(_COPIES, _LOG_IN_SYNC, _EXPIRATION)
        for each in topics:
            in_sync = requests.settings(_IN_SYNC, topic=each).get(_IN_SYNC, "1")
            yield _of_copies(f"topic {each}", min(copies[each]), int(in_sync), _IN_SYNC)
        if _COPIES in brokers:
            what = "__transaction_state, where the broker keeps transactions,"
            yield _of_copies(what, int(brokers[_COPIES]), int(brokers.get(_LOG_IN_SYNC, 1)), _LOG_IN_SYNC)
        if _EXPIRATION in brokers:
            yield _of_expiration(float(brokers[_EXPIRATION]) / 1000)
    except Exception as error:
        why = "whether a message survives the loss of a broker is not known"
        yield warning("replication", f"the settings cannot be read: {described(error)}", why, "allow DescribeConfigs")
    yield _of_rights(requests, trusted=settings.trusts_anybody)
    if not settings.trusts_anybody:
        yield warning(
            "owners",
            "the broker does not tell who has begun a transaction",
            "recovery commits what is decided, and leaves the rest to the broker's timeout: until then it hides "
            "what follows in its partitions",
            "if nobody else can connect, or ACLs keep others from such ids, write prepared.owners = any",
        )


def _of_reading(requests: KafkaRequests, topic: str) -> Iterator[Finding]:
    """Whether it may be found out that a commit has arrived in a topic."""
    from kafka.errors import AuthorizationError

    from txpool.resources.kafka.records import Producer

    try:
        requests.left_open(Producer("", -1, -1), [(topic, 0)])
    except AuthorizationError as error:
        yield failure(
            "rights",
            f"the user may not read topic {topic}: {described(error)}",
            "whether a commit has arrived there cannot be found out: no decision is forgotten, and each is an alarm",
            f"let an ACL of topic {topic} allow Read to this application",
        )


def _of_timeout(longest: float, timeout: float | None) -> Finding:
    if longest == inf:
        return ok("timeout", "two-phase commit is on: the broker ends no prepared transaction by itself")
    seconds = most(longest)
    if timeout is not None and timeout > seconds:
        return failure(
            "timeout",
            f"transaction.timeout is {timeout:g} s, and the broker ends a prepared transaction after {longest:g} s",
            "a transaction that sends there is refused: it may take a third of the broker's timeout",
            f"write transaction.timeout = {seconds:g}, or less; or raise the broker's transaction.max.timeout.ms",
        )
    return ok(
        "timeout",
        f"the broker ends a prepared transaction after {longest:g} s by itself; one is decided within "
        f"{seconds:g} s or rolls back, and recovery must run within the rest",
    )


def _of_copies(what: str, copies: int, in_sync: int, key: str) -> Finding:
    found = f"{what} has {copies} copies, {in_sync} of which confirm a message"
    if copies > in_sync > 1:
        return ok("replication", found)
    why = "a broker that is lost with its disk takes what was decided with it"
    if copies <= in_sync > 1:
        why = "a broker that is down lets no transaction prepare or end"
    return warning("replication", found, why, f"use 3 copies, and {key} = 2")


def _of_expiration(seconds: float) -> Finding:
    found = f"the broker keeps the id of a transaction that has ended for {seconds / _DAY:g} days"
    if seconds >= _DAY:
        return ok("expiration", found)
    why = "if recovery is down for longer, nothing tells how a transaction has ended: a heuristic hazard is reported"
    return warning("expiration", found, why, f"raise {_EXPIRATION}: its default is 604800000")


def _of_rights(requests: KafkaRequests, *, trusted: bool) -> Finding:
    """Who may use transactional ids as ours are."""
    from kafka import errors
    from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePatternFilter, ResourceType
    from kafka.admin import ACLResourcePatternType as PatternType

    pattern = ResourcePatternFilter(ResourceType.TRANSACTIONAL_ID, f"{PREFIX}:", PatternType.MATCH)
    asked = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ALLOW, pattern)
    do = f"let ACLs of the TransactionalId prefix {PREFIX}: allow Write and Describe to this application alone"
    why = "whoever may write such an id can end what is prepared under it, or begin it anew"
    try:
        allowed, error = requests.client().describe_acls(asked)
    except Exception as raised:
        allowed, error = [], type(raised)
    if isinstance(error, Exception):
        error = type(error)
    if error is errors.SecurityDisabledError:
        return warning("rights", "the cluster has no ACLs", f"everybody who connects is trusted: {why}", do)
    if error is not errors.NoError:
        return warning("rights", f"the ACLs cannot be read: {error.__name__}", why, "allow Describe on the cluster")
    writes = (ACLOperation.WRITE, ACLOperation.ALL)
    users = sorted({str(each.principal) for each in allowed if each.operation in writes})
    found = f"ids that begin with {PREFIX}: may be used by {', '.join(users) or 'super users alone'}"
    if trusted and "User:*" in users:
        return warning("rights", found, f"prepared.owners = any trusts them all: {why}", do)
    return ok("rights", found)
