"""Hosts of their own on one machine: network namespaces behind a bridge, each on a cable that can be unplugged."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Namespaces, bridges and links are named after the process that has made them.
_NAMED = re.compile(r"txp(\d+)[a-z]*")
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
        _ip("-n", self._name, "link", "set", "eth0", "up")
        _ip("link", "set", self._name, "up")
        self.heal()

    def cut(self) -> None:
        """Unplug it: what is sent is lost, both ways, and nobody is told."""
        _ip("link", "set", self._name, "nomaster")

    def heal(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self._name, "master", self._network.name)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A process on this host, with pipes for its input and its output."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self._name, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
