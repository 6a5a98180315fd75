"""The names of transactions and branches, as a DBA reads them in `pg_prepared_xacts`, and as recovery parses them.

A gtrid is ``txp1:<node>:<incarnation>:<number>``. A bqual is ``<number>:<tag>:<decider>``, followed in a Spark task by
``:<write>.<partition>.<attempt>.<branches>``. The decider is ``L`` for the decision log, or for a marked datasource
``M.<tag>:<identity>``, with the identity of its table of marks (left out if the table had none yet). A name that
does not match exactly is not ours, and is never touched. The number in ``txp1`` is that of the format: names of later
versions have another, and are for their recovery.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from functools import lru_cache
from sys import intern
from typing import NamedTuple

PREFIX = "txp1"
FORMAT_ID = 0x74787031  # "txp1"
MAX_PART = 64  # bytes of a gtrid or a bqual: XA's own limit, and MySQL's

_NAME = r"[A-Za-z0-9_.-]"
_GTRID = re.compile(rf"{PREFIX}:({_NAME}{{1,28}}):([a-z0-9]{{12}}):([0-9a-z]{{1,12}})")
_BQUAL = re.compile(
    rf"([0-9]{{1,4}}):({_NAME}{{1,16}}):(L|M\.{_NAME}{{1,16}}(?::[a-z0-9]{{12}})?)"
    r"(?::([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+))?"
)
_JOINED = re.compile(f"(?P<gtrid>{_GTRID.pattern}):(?P<bqual>{_BQUAL.pattern})")
_IDENTITY = re.compile(r"[a-z0-9]{12}")
_RESERVED = re.compile(r"txp[0-9]+:")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_TAG_LIMIT = 16
_new = tuple.__new__


class Gtrid(NamedTuple):
    """The parts of a gtrid."""

    node: str
    incarnation: str
    number: str


class TaskName(NamedTuple):
    """Where in a Spark job a branch was prepared: its write, partition, task attempt, and that attempt's branches."""

    write: int
    partition: int
    attempt: int
    branches: int


class Xid(NamedTuple):
    """The name of a branch: `gtrid` names the global transaction, `bqual` the branch within it."""

    gtrid: str
    bqual: str

    @property
    def joined(self) -> str:
        """Both parts as one text, for databases that have a single name (PostgreSQL's gid)."""
        gtrid, bqual = self
        return f"{gtrid}:{bqual}"

    @property
    def tag(self) -> str:
        """The tag of the datasource that holds the branch."""
        return _parsed(self)[2]

    @property
    def decider(self) -> str | None:
        """The tag of the marked datasource that decides, or None if the decision log does."""
        decider = _parsed(self)[3]
        return None if decider == "L" else split_pointer(decider[2:])[0]

    @property
    def decided_by(self) -> str:
        """The decider as it stands in the name, with its table's identity: equal in all branches of one coordinator."""
        return _parsed(self)[3]

    @property
    def identity(self) -> str:
        """The identity of the marked datasource's table; empty if the log decides, or the table had none yet."""
        return split_pointer(_parsed(self)[3])[1]

    @property
    def task(self) -> TaskName | None:
        """Where in a Spark job the branch was prepared; None if it was not prepared in a Spark task."""
        if self.bqual.endswith(":L"):  # as most names do; the rest is not read, which takes longer
            return None
        found = _parsed(self)
        return TaskName(*map(int, found.groups()[3:])) if found[4] is not None else None

    @property
    def incarnation(self) -> str:
        """The incarnation that named the branch."""
        return split_gtrid(self.gtrid).incarnation

    @property
    def node(self) -> str:
        """The node that named the branch."""
        return split_gtrid(self.gtrid).node


def new_incarnation() -> str:
    """A random name for one run of one process: 12 characters, 62 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(12))


def make_gtrid(node: str, incarnation: str, number: int) -> str:
    """The gtrid of an incarnation's number-th transaction."""
    return f"{PREFIX}:{node}:{incarnation}:{number:x}"


def gtrid_prefix(node: str, incarnation: str) -> str:
    """What every gtrid of an incarnation begins with, and no other's does."""
    return f"{PREFIX}:{node}:{incarnation}:"


def make_xid(
    gtrid: str,
    number: int,
    datasource: str,
    decider: str | None = None,
    identity: str = "",
    *,
    task: TaskName | None = None,
) -> Xid:
    """The name of a branch; `decider` is the name of the marked datasource, or None for the decision log."""
    bqual = _bqual(number, datasource, decider, identity)
    if task is not None:
        bqual += f":{task.write}.{task.partition}.{task.attempt}.{task.branches}"
    return _new(Xid, (gtrid, bqual))  # as Xid(gtrid, bqual), which takes two calls more


@lru_cache(maxsize=1024)
def _bqual(number: int, datasource: str, decider: str | None, identity: str) -> str:
    """The bqual outside of Spark's tasks, of which a datasource has few."""
    return f"{number}:{tag_of(datasource)}:{f'M.{make_pointer(tag_of(decider), identity)}' if decider else 'L'}"


@lru_cache(maxsize=1024)
def tag_of(datasource: str) -> str:
    """A datasource's name; if that is too long for a bqual, its beginning and a digest of the whole."""
    if len(datasource) <= _TAG_LIMIT:
        return datasource
    digest = hashlib.sha256(datasource.encode()).hexdigest()[:6]
    return f"{datasource[:9]}.{digest}"


def all_name(decider: str, identity: str, xids: Iterable[Xid]) -> bool:
    """Whether all of these names say that this marked datasource decides, by its table of marks with this identity."""
    end = f":M.{make_pointer(tag_of(decider), identity)}"
    return all(bqual.endswith(end) for _, bqual in xids)


def make_pointer(datasource: str, identity: str) -> str:
    """The text of a pointer: a marked datasource, and the identity of its table of marks, if that has one."""
    return f"{datasource}:{identity}" if identity else datasource


def is_identity(text: str) -> bool:
    """Whether it has the form of the identity of a table of marks: no other can be in a name."""
    return _IDENTITY.fullmatch(text) is not None


def split_pointer(pointer: str) -> tuple[str, str]:
    """The marked datasource and the identity that `make_pointer` has joined."""
    datasource, _, identity = pointer.partition(":")
    return datasource, identity


def parse(joined: str) -> Xid | None:
    """The branch with this joined name; None if it is not exactly a name of ours."""
    match = _JOINED.fullmatch(joined)
    if match is None:
        return None
    gtrid, bqual = match.group("gtrid", "bqual")
    return _new(Xid, (gtrid, intern(bqual))) if len(gtrid) <= MAX_PART and len(bqual) <= MAX_PART else None


def is_reserved(xid: object) -> bool:
    """Whether a branch's name, or the gtrid of PEP 249's xid, is txpool's: of this format, or of another version's."""
    gtrid = xid[1] if isinstance(xid, tuple) and len(xid) == 3 else getattr(xid, "gtrid", "")
    return any(_RESERVED.match(text_of(each)) for each in (xid, gtrid))


def text_of(xid: object) -> str:
    """The text that a driver would send for it. A subclass of str, as an Enum of texts, may print another."""
    return str.__str__(xid) if isinstance(xid, str) else str(xid)


@lru_cache(maxsize=1024)  # a listing has the branches of a transaction near each other
def split_gtrid(gtrid: str) -> Gtrid:
    """The parts of one of our gtrids; ValueError for any other text."""
    match = _GTRID.fullmatch(gtrid)
    if match is None:
        raise ValueError(f"{gtrid!r} is not a gtrid of txpool")
    node, incarnation, number = match.groups()
    return Gtrid(intern(node), intern(incarnation), number)  # recovery keeps very many


def is_gtrid(text: str) -> bool:
    """Whether it is one of our gtrids."""
    return _GTRID.fullmatch(text) is not None


def _parsed(xid: Xid) -> re.Match[str]:
    match = _BQUAL.fullmatch(xid.bqual)
    if match is None:
        raise ValueError(f"{xid.bqual!r} is not a bqual of txpool")
    return match
