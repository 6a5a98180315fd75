"""A Galera cluster of two MariaDB nodes: each commits for both, and the second commit of a row's change is refused."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.support.mysql import MySQLServer
from txpool.demo.server import free_port

#: Of Debian's package galera-4, which mariadb-server brings.
PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
_START_SECONDS = 60.0


class GaleraNode(MySQLServer):
    """A node of its own cluster, or one that joins another node's, and has its data and its accounts then."""

    def __init__(self, program: Path, *, joins: GaleraNode | None = None) -> None:
        super().__init__(program, databases=("one",))
        self._joins = joins
        self._address = f"127.0.0.1:{free_port()}"
        #: Where a joining node receives the data, and later what it has missed.
        self._receives = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        if joins is not None:
            self.password = joins.password

    def start(self) -> None:
        """As `MySQLServer.start`; the node takes statements then."""
        if self._joins is None:
            super().start()  # creates the data
            self.stop()
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="txpool-galera-"))
            (self.folder / "data").mkdir()
            account = self._account()
            for each in (self.folder, self.folder / "data") if account else ():
                os.chown(each, account["user"], account["group"])
            self.port = free_port()
        self.settings = self._cluster_settings()
        super().start()
        until = time.monotonic() + _START_SECONDS
        while dict(self.execute("show status like 'wsrep_ready'"))["wsrep_ready"] != "ON":
            assert time.monotonic() < until, (self.folder / "log").read_text()[-4000:]  # type: ignore[operator]
            time.sleep(0.05)

    def _cluster_settings(self) -> tuple[str, ...]:
        address, (data, missed) = self._address, self._receives
        return (
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-cluster-address=gcomm://{self._joins._address if self._joins else ''}",
            f"--wsrep-node-address={address}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://{address};ist.recv_addr={missed}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={data}",
            "--binlog-format=row",
            "--innodb-autoinc-lock-mode=2",
            f"--server-id={2 if self._joins else 1}",
        )
