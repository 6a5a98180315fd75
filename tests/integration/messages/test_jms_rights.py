"""Users of a JMS broker who may not do what their sessions do: nothing is parked, lost or in doubt for that."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.jms.broker import Artemis
from tests.support.jms.fixtures import write_site
from tests.support.message_site import configured
from tests.support.shared import own
from txpool.idempotency.outage import is_outage
from txpool.messages import MessageSession, ReceivedMessage
from txpool.resources.jms.manager import MANAGER

pytestmark = [pytest.mark.slow, pytest.mark.costly]
_RIGHTS = """<security-settings>
<security-setting match="#">
<permission type="consume" roles="all,reader"/><permission type="browse" roles="all,reader"/>
<permission type="send" roles="all"/>
</security-setting>
<security-setting match="txpool.identity">
<permission type="createAddress" roles="all,reader"/><permission type="createDurableQueue" roles="all,reader"/>
<permission type="consume" roles="all,reader"/><permission type="browse" roles="all,reader"/>
<permission type="send" roles="all,reader"/>
</security-setting>
</security-settings>
<addresses>"""


class SecuredArtemis(Artemis):
    users = ("all", "reader")

    def __init__(self, folder: Path, classpath: str) -> None:
        super().__init__(folder, classpath)
        queues = "".join(
            f'<address name="{name}"><anycast><queue name="{name}"/></anycast></address>'
            for name in ("in", "in-parked", "out")
        )
        text = self._config.read_text().replace("<addresses>", _RIGHTS + queues)
        self._config.write_text(text.replace("<security-enabled>false", "<security-enabled>true"))


@pytest.fixture(scope="module")
def broker(artemis_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredArtemis]:
    with own(tmp_path_factory, SecuredArtemis, artemis_classpath) as made:
        yield made


@pytest.fixture
def session(broker: SecuredArtemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the session of a queue for a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    write_site(tmp_path, broker, ("in", "out"))

    def make(queue: str, user: str) -> MessageSession:
        file = tmp_path / f"{queue}-{user}.properties"
        lines = (tmp_path / f"{queue}.properties").read_text().replace(f"name = {queue}", f"name = {queue}-{user}")
        file.write_text(f"{lines}user = {user}\npassword = x\n")
        file.chmod(0o600)
        return txpool.session(file)

    with configured(tmp_path):
        yield make
        while emptied(make("in", "all")) + emptied(make("out", "all")):
            pass


def emptied(session: MessageSession) -> list[str]:
    with txpool.transaction():
        return [each.text for each in session.receive(10)]


def test_a_send_that_is_refused_is_not_in_doubt_and_parks_nothing(session: Any) -> None:
    inward, outward, left = session("in", "all"), session("out", "reader"), [1] * 5
    with pytest.raises(txpool.TransactionRolledBack, match="does not have permission='SEND' on address out") as error:
        outward.send("x")
    assert is_outage(error.value)
    inward.send("one")

    @txpool.consumer(inward, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        with txpool.connect("orders.properties") as orders:
            orders.execute("insert into done values (?)", [messages[0].text])
        (outward if left else session("out", "all")).send(messages[0].body)
        left[:] = left[1:]

    assert ship.run(lambda: (not left and not inward.wait(0)) or inward.parked()[0] > 0) == 1
    assert emptied(session("out", "all")) == ["one"]
    with closing(sqlite3.connect("orders.db")) as connection:
        assert connection.execute("select body from done").fetchall() == [("one",)]


def test_an_outage_makes_no_dead_letter_of_what_cannot_be_sent_anew(session: Any, caplog: Any) -> None:
    inward, calls = session("in", "reader"), list[str]()
    session("in", "all").send("one")

    @txpool.consumer(inward, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        calls.extend(each.id for each in messages)
        raise txpool.PoolTimeout("none is free")

    ship.run(lambda: caplog.text.count("so that it can be sent anew") == 10 or not inward.wait(0))
    assert len(calls) < 5
    assert emptied(session("in", "all")) == ["one"]
    with MANAGER.sessions(inward.source).lent() as raw:
        assert raw.count("dead") == raw.count("in-parked") == 0
