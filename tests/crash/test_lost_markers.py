"""KAFKA-20734: a broker of 4.4 that is killed behind its answer to a commit forgets its markers, and hides messages.

Recovery writes them, or says which right it lacks. It needs several kills, each with a start of the broker, or a broker
with ACLs: it runs with TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    NewTopic,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import AuthorizationError

from tests.support.kafka.broker import Broker, find_classpath
from tests.support.waiting import until
from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Severity
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.kafka.branch import end_branch, evidence_of
from txpool.resources.kafka.check import findings
from txpool.resources.kafka.manager import MANAGER
from txpool.resources.kafka.records import Record
from txpool.resources.kafka.requests import KafkaRequests
from txpool.xid import make_gtrid, make_xid

if TYPE_CHECKING:
    from tests.conftest import Require

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="missing: TXPOOL_CRASH_FULL=1, as it takes minutes"),
]
#: How often the broker is killed at most, until it has forgotten markers: in the trial it took seven.
KILLS = 40
PARTITIONS = 50


# A client whose broker was killed leaves sockets, of kafka-python's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_markers_that_a_broker_has_forgotten_are_written(tmp_path: Path, require: Require) -> None:
    classpath = find_classpath("4.4.0")
    require(classpath, "Kafka: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    broker = Broker(tmp_path, classpath)
    try:
        broker.start()
        broker.create_topics("out", partitions=PARTITIONS)
        for number in range(KILLS):
            if _forgotten(broker, number):
                return
        pytest.fail(f"no marker was lost in {KILLS} kills: is it mended?")
    finally:
        broker.close()
        gc.collect()


_LOGINS = "PlainLoginModule required username=admin password=root user_admin=root user_app=app"
#: A broker whose user `app` may do what the page on Kafka asks for, but for ClusterAction.
_ACLS = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f"org.apache.kafka.common.security.plain.{_LOGINS};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


def _login(user: str, password: str) -> dict[str, str]:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    return options | {"sasl_plain_username": user, "sasl_plain_password": password}


def _allow(admin: KafkaAdminClient) -> None:
    topic, unread = (ResourcePattern(ResourceType.TOPIC, name) for name in ("out", "unread"))
    ids = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "txp1:", ACLResourcePatternType.PREFIXED)
    rights = [(topic, ACLOperation.WRITE), (topic, ACLOperation.READ), (ids, ACLOperation.WRITE)]
    rights.append((unread, ACLOperation.WRITE))
    admin.create_acls([ACL("User:app", "*", right, ACLPermissionType.ALLOW, of) for of, right in rights])


def test_the_broker_says_that_the_right_to_write_markers_is_missing(tmp_path: Path, require: Require) -> None:
    classpath = find_classpath()
    require(classpath, "Kafka: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    broker = Broker(tmp_path, classpath, **_ACLS)
    name = make_xid(make_gtrid("n1", "abcdefghijkl", 1), 0, "out")
    deadline = time.monotonic() + 600
    try:
        broker.start()
        with closing(KafkaAdminClient(bootstrap_servers=broker.address, **_login("admin", "root"))) as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("out", "unread")])
            _allow(admin)
            _check_says_what_is_missing(tmp_path, broker, admin)
        with closing(KafkaRequests(broker.address, _login("app", "app"))) as requests:
            producer = requests.begin(name.joined, 600, deadline)
            requests.send(producer, [Record("out", 0, None, b"one", ())], deadline)
            with pytest.raises(AuthorizationError):
                requests.write_markers(producer, [("out", 0)], deadline, commit=True)
            record = BranchRecord(name, "out", requests.cluster(), evidence_of(producer, [("out", 0)]))
            assert end_branch(requests, record, commit=True) == (BranchOutcome.COMMITTED, "")
        with closing(KafkaRequests(broker.address, _login("app", "wrong"))) as requests:
            outcome, _ = end_branch(requests, record, commit=True)
            assert outcome is BranchOutcome.UNKNOWN
    finally:
        broker.close()


def _check_says_what_is_missing(folder: Path, broker: Broker, admin: KafkaAdminClient) -> None:
    file = folder / "out.properties"
    login = "user = app\npassword = app\n"
    file.write_text(f"driver = kafka\nurl = {broker.url}\ntopic = out\n{login}")
    file.chmod(0o600)
    settings = DataSourceSettings.load(file)

    def said(*topics: str) -> list[str]:
        with closing(KafkaRequests(broker.address, _login("app", "app"))) as requests:
            found = findings(settings, requests, MANAGER.branch_recovery(settings), topics, timeout=None)
            return [each.found for each in found if each.severity is Severity.WRONG]

    (missing,) = said("out")
    assert "DescribeConfigs on the cluster" in missing
    cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    admin.create_acls([ACL("User:app", "*", ACLOperation.DESCRIBE_CONFIGS, ACLPermissionType.ALLOW, cluster)])
    until(lambda: not said("out"))
    (missing,) = said("out", "unread")
    assert "may not read topic unread" in missing


def _forgotten(broker: Broker, number: int) -> bool:
    """Kill the broker behind its answer to a commit; whether it has forgotten markers, which were written then."""
    name = make_xid(make_gtrid("n1", "abcdefghijkl", number), 0, "out")
    parts = [("out", each) for each in range(PARTITIONS)]
    deadline = time.monotonic() + 600
    with closing(KafkaRequests(broker.address, {})) as requests:
        record = BranchRecord(name, "out", requests.cluster())
        producer = requests.begin(name.joined, 600, deadline)
        requests.send(producer, [Record(*part, None, str(number).encode(), ()) for part in parts], deadline)
        record = record._replace(evidence=evidence_of(producer, parts))
        assert requests.end(producer, deadline, commit=True) == ""
        broker.kill()
    broker.start()
    with closing(KafkaRequests(broker.address, {})) as requests:
        deadline = time.monotonic() + 600
        state = requests.state(name.joined, deadline)
        left = requests.left_open(producer, parts)
        print(f"kill {number}: {state and state.state}, open in {len(left)}")
        assert end_branch(requests, record, commit=True) == (BranchOutcome.COMMITTED, "")
        assert requests.left_open(producer, parts) == []
        forgotten = state is not None and state.state == "CompleteCommit" and bool(left)
    found = [each.value for each in broker.committed("out", range(PARTITIONS))]
    assert found.count(str(number).encode()) == PARTITIONS
    return forgotten
