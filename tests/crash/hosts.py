"""Hosts of their own on one machine: network namespaces behind a bridge, each on a cable that can be unplugged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.children import WITH_ITS_PARENT
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.conftest import Require

#: Namespaces, bridges and links are named after the process that has made them.
_NAMED = re.compile(r"txp(\d+)[a-z]*")
#: A process's descendants end with it, whatever sessions they have begun: they have their own pids.
_WITH_ALL = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_SIZE = 16  # addresses of one network, out of those that are for tests of networks, and nobody's: 198.18.0.0/15


class Network:
    """This machine, at `address`, and so many hosts; CalledProcessError where namespaces are not allowed here."""

    def __init__(self, hosts: int) -> None:
        self.name = f"txp{os.getpid()}"
        self.address = self.numbered(1)
        # Of its own choice the bridge would have a port's hardware address, and another one when that is unplugged.
        _ip("link", "add", self.name, "address", "02:00:00:00:00:01", "type", "bridge")
        _ip("address", "add", f"{self.address}/28", "dev", self.name)
        _ip("link", "set", self.name, "up")
        self.hosts = [Host(self, number) for number in range(hosts)]

    def numbered(self, number: int) -> str:
        """One of its addresses."""
        found = os.getpid() * _SIZE % 2**17 + number
        return f"198.{18 + (found >> 16)}.{found >> 8 & 255}.{found & 255}"

    @staticmethod
    def remove(pid: int) -> None:
        """Remove what a process has made of a network, and the hosts in it."""
        for name in _ip("netns", "list").split():
            if (found := _NAMED.fullmatch(name)) and int(found[1]) == pid:
                _ip("netns", "delete", name)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "delete", f"txp{pid}")

    @classmethod
    def remove_left(cls) -> None:
        """Remove those of processes that were killed before they could."""
        for name in _ip("netns", "list").split():
            if (found := _NAMED.fullmatch(name)) and not Path(f"/proc/{found[1]}").exists():
                cls.remove(int(found[1]))


@contextmanager
def network_of(hosts: int, require: Require) -> Iterator[Network]:
    """A network for the length of a block; it skips if namespaces are not allowed here."""
    require(shutil.which("ip") and os.geteuid() == 0, "network namespaces: root, and iproute2")
    Network.remove_left()
    # However this process ends, that closes the pipe, and the shell at its other end then has the network removed.
    removal = [sys.executable, "-m", "tests.crash.hosts", str(os.getpid())]
    waiting = ["/bin/sh", "-c", 'read -r nothing; exec "$@"', "sh", *removal]
    with subprocess.Popen(waiting, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True):
        try:
            network = Network(hosts)
        except subprocess.CalledProcessError as error:
            require(False, f"network namespaces: {error.stderr.strip()}")
            raise
        yield network


class Host:
    """A network namespace, at `address`."""

    def __init__(self, network: Network, number: int) -> None:
        self.letter = "abcdefghijklm"[number]
        self.address = network.numbered(number + 2)
        self._network = network
        self._name = f"{network.name}{self.letter}"  # of the namespace, and of the cable's end at the bridge
        _ip("netns", "add", self._name)
        _ip("link", "add", self._name, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        _ip("-n", self._name, "address", "add", f"{self.address}/28", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", self._name, "link", "set", link, "up")
        _ip("link", "set", self._name, "up")
        self.heal()

    def cut(self) -> None:
        """Unplug it: what is sent is lost, both ways, and nobody is told."""
        _ip("link", "set", self._name, "nomaster")

    def heal(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self._name, "master", self._network.name)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A process on this host, with pipes for its input and its output. All that it starts ends with it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [*WITH_ITS_PARENT, "ip", "netns", "exec", self._name, *_WITH_ALL, *command], **(pipes | options)
        )

    def processes(self, argument: str) -> list[int]:
        """The processes of this host that have such an argument."""
        found = [int(pid) for pid in _ip("netns", "pids", self._name).split()]
        return [pid for pid in found if argument in _arguments(pid)]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # it has ended
        return []


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    Network.remove(int(sys.argv[1]))
