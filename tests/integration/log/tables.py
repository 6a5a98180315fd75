"""What the log's tables say, read by bare drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.children import Child
from txpool.log import SqlLog
from txpool.xid import make_gtrid

if TYPE_CHECKING:
    pass

NODE = "etl-1"
Readable = "LogPlace | Databases"
Opener = Callable[..., SqlLog]
Spawn = Callable[..., Child]


def gtrid_of(log: SqlLog, number: int = 1) -> str:
    return make_gtrid(log.node, log.incarnation, number)


def decided(place: Readable) -> set[str]:
    return {g for (g,) in place.rows("one", "SELECT gtrid FROM txpool_decisions WHERE branches IS NOT NULL")}


def fences(place: Readable) -> dict[str, int]:
    return dict(place.rows("one", "SELECT name, fenced FROM txpool_incarnations"))
