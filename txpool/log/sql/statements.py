"""What a sql log says to its database, in the database's own SQL. What it means, and in which order, is in `store`.

A script is one statement or several, which become durable together; its result is the rows of the last one that has
any. Parameters are named: %(name)s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

Script = tuple[LiteralString, ...]

#: The tables of a sql log.
TABLES: Final = (
    "txpool_meta",
    "txpool_incarnations",
    "txpool_decisions",
    "txpool_finished",
    "txpool_pointers",
    "txpool_heuristics",
    "txpool_expired",
    "txpool_memos",
)


@dataclass(frozen=True)
class Statements:
    """The scripts of one kind of database.

    Those of `abort`, `point`, `finish` and `fence` write also if they find what they would write: that write makes
    durable what was found.
    """

    abort: Script  # gtrid, now: an abort record, or nothing if its key is taken; the first character of the branches
    point: Script  # gtrid, datasource: the datasource that decides it
    finish: Script  # gtrid
    forget: Script  # gtrids, and joined by spaces: deletes decisions, and no abort records
    purge: Script  # gtrids: deletes all that is kept of them
    publish: Script  # name, node, lease, old, kind, format, now: registers an incarnation, fences an old one
    fence: Script  # name, every, nodes: a row if it is registered
    revive: Script  # the same: brings an expired incarnation back, fenced; a row if there was one
    incarnations: Script  # every, nodes: name, fenced, whether its lease is held now
    in_use: Script  # the names of those whose lease is held, while none can be registered
    expire: Script  # names, every, nodes, now
    expired: Script  # names, all, every, nodes
    record_heuristic: Script
    put_record: Script
    delete_records: Script  # kind, names
    set_meta: Script  # name, value
