"""A client of the status page, and what it is given to show."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recovery.operator.last_scan import Overview
from recovery.operator.listing import BranchState, InDoubt
from recovery.scan.report import ScanReport
from recovery.service.status import StatusServer

TOKEN = "a token, and no other"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Got:
    """An answer."""

    status: int
    text: str
    headers: Mapping[str, str]


def get(server: StatusServer, path: str = "", method: str = "GET", **headers: str) -> Got:
    url = server.url.replace("0.0.0.0", "127.0.0.1") + path
    request = urllib.request.Request(url, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Got(answer.status, answer.read().decode(), answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Got(error.code, error.read().decode(), error.headers)


def overview(**changes: Any) -> Overview:
    return replace(Overview(1_800_000_000.0, 0.01, 1, ScanReport(), (), ()), **changes)


def doubt(**changes: Any) -> InDoubt:
    branches = (BranchState("g:0:a:L", "a", "prepared"),)
    return replace(
        InDoubt("g", "etl-1", "i", "its process is dead", 5.0, "commit", "the log", branches, "commit"), **changes
    )
