"""Network addresses: a host and a port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_FORM = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or IP address, and a port; port 0 stands for any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Parse `127.0.0.1:9464`, `[::1]:9464` or `localhost:9464`; None for other text."""
        match = _FORM.fullmatch(text)
        if match is None or match["port"] is None or int(match["port"]) > 65535:
            return None
        return cls(match["v6"] or match["name"], int(match["port"]))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_of(header: str) -> str:
    """The host in a Host header, which may have a port; empty if it is not a host."""
    match = _FORM.fullmatch(header)
    return "" if match is None else match["v6"] or match["name"]


def is_loopback(host: str) -> bool:
    """Whether a name or an address is of this machine's loopback, whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
