"""Consumers, recovery and the broker are killed: each message in is one row and one message out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import txpool
from tests.crash import eventually as places
from tests.crash.consumers import EXPECTED, MESSAGES, at_work
from tests.crash.eventually import Eventually
from tests.support.jms import fixtures as jms
from tests.support.jms.broker import Artemis
from tests.support.kafka import fixtures as of_kafka
from tests.support.kafka.broker import Broker

pytestmark = pytest.mark.slow


def test_kafka(own_kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    monkeypatch.chdir(tmp_path)
    topics = of_kafka.create_topics(own_kafka)
    of_kafka.write_site(tmp_path, own_kafka, topics, more="parking.after = 1000\n")
    with at_work(tmp_path, own_kafka) as work:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
        reports = work.survive()
        assert [each for report in reports for each in report.alarms] == []
        with txpool.transaction():
            txpool.session("out.properties").send("end")
        *sent, end = own_kafka.told(topics[1], MESSAGES + 1)
    assert end == "end"
    assert Counter(sent) == EXPECTED


def test_jms(own_artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    monkeypatch.chdir(tmp_path)
    queues = jms.create_queues(own_artemis, prefix="crash.")  # their messages are delivered however often
    jms.write_site(tmp_path, own_artemis, queues, tries=1000)
    with at_work(tmp_path, own_artemis) as work:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["orders.db"]))
        work.survive()
    assert Counter(own_artemis.bodies(queues[1])) == EXPECTED
    assert own_artemis.bodies(queues[0]) == []
