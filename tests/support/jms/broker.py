"""Artemis out of Maven, on a free port, in a folder; and what an operator does there, by its own management."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.children import WITH_ITS_PARENT
from tests.support.ports import free_ports
from tests.support.waiting import until
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.jvm import jvm

POM = Path(__file__).with_name("pom.xml")
# A broker takes no message once nine tenths of its disk are in use, or are not for it.
_CONFIG = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<security-enabled>false</security-enabled>
<max-disk-usage>-1</max-disk-usage>
<journal-type>NIO</journal-type>
<journal-pool-files>2</journal-pool-files>
<journal-min-files>2</journal-min-files>
<journal-file-size>1M</journal-file-size>
<journal-directory>{folder}/journal</journal-directory>
<bindings-directory>{folder}/bindings</bindings-directory>
<large-messages-directory>{folder}/large</large-messages-directory>
<paging-directory>{folder}/paging</paging-directory>
<acceptors><acceptor name="tcp">tcp://127.0.0.1:{port}</acceptor></acceptors>
<address-settings>
<address-setting match="#"><dead-letter-address>dead</dead-letter-address></address-setting>
<address-setting match="crash.#"><max-delivery-attempts>-1</max-delivery-attempts></address-setting>
<address-setting match="full.#"><max-size-bytes>100K</max-size-bytes><address-full-policy>BLOCK</address-full-policy>
</address-setting>
</address-settings>
<addresses>
<address name="dead"><anycast><queue name="dead"/></anycast></address>
<address name="news"><multicast><queue name="shop"/></multicast></address>
</addresses>
</core></configuration>"""
_CLIENT = "org.apache.activemq.artemis.jms.client.ActiveMQXAConnectionFactory"


class Artemis:
    """A broker in a folder."""

    #: Who may log in, if not anybody: each has a role of the same name, and the password "x".
    users: tuple[str, ...] = ()

    def __init__(self, folder: Path, classpath: str) -> None:
        (self.port,) = free_ports(1)
        self.folder, self.classpath = folder, classpath
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / "broker.xml"
        self._config.write_text(_CONFIG.format(folder=folder, port=self.port))

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = str(POM.with_name("server.py"))
        command = [*WITH_ITS_PARENT, sys.executable, program, self.classpath, str(self._config), *self.users]
        with (self.folder / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until(self._has_started, 600, pause=0.05)

    def _has_started(self) -> bool:
        """Its port answers before it does."""
        said = (self.folder / "broker.log").read_text()
        assert self._process is not None
        assert self._process.poll() is None, said[-4000:]
        return "started\n" in said

    def kill(self) -> None:
        assert self._process is not None, "it was not started here: others use it, too"
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    # -- as any other program of JMS's, over a connection of its own ---------------------------------------------

    def connect(self) -> Any:
        """A connection of the client's alone."""
        classes = jvm.started(tuple(self.classpath.split(":")))
        opened = call(call(classes.load(_CLIENT), self.url).createXAConnection)
        call(opened.start)
        return opened

    def create_queues(self, *names: str) -> None:
        """Durable ones, which the broker never deletes by itself."""
        for name in names:
            self.manage("createQueue", name, name, "ANYCAST")

    def bodies(self, queue: str) -> list[str]:
        """What can be received there; it stays."""
        return [body.decode() for _, body in self.browsed(queue)]

    def browsed(self, queue: str, header: str = "txpool_id") -> list[tuple[str, bytes]]:
        """As `bodies`, with a header of each."""
        opened = self.connect()
        try:
            session = opened.createSession(False, 1)
            found = session.createBrowser(session.createQueue(queue)).getEnumeration()
            browsed = []
            while found.hasMoreElements():
                each = found.nextElement()
                body = bytes(each.getBody(_bytes_class())) if each.getBodyLength() else b""
                browsed.append((str(each.getStringProperty(header)), body))
            return browsed
        finally:
            opened.close()

    def manage(self, operation: str, *arguments: str) -> Any:
        """The answer to an operation of the broker's management."""
        opened = self.connect()
        try:
            classes = jvm.started(tuple(self.classpath.split(":")))
            helper = classes.load("org.apache.activemq.artemis.api.jms.management.JMSManagementHelper")
            session = opened.createQueueSession(False, 1)
            asking = session.createMessage()
            helper.putOperationInvocation(asking, "broker", operation, list(arguments) if arguments else None)
            requestor = classes.load("jakarta.jms.QueueRequestor")(session, session.createQueue("activemq.management"))
            return helper.getResult(requestor.request(asking))
        finally:
            opened.close()


def _bytes_class() -> Any:
    from jpype import JArray, JByte

    return JArray(JByte).class_
