"""The cases of mode cmr: the row that decides, and the tombstone that fences it."""

from __future__ import annotations

import threading
from contextlib import suppress

from txpool.conformance.cases.case import at_once, require
from txpool.conformance.client import Client
from txpool.conformance.subject import NODE, Subject
from txpool.conformance.workload import attempted
from txpool.resources.base import BranchRecord
from txpool.resources.recovery_access import MarkedRow

_ROUNDS = 5  # of a race
Records = tuple[BranchRecord, ...]


def _marked(subject: Subject, gtrid: str | None = None) -> tuple[Client, str, Records]:
    """A client that has written something and its row, neither of which is committed."""
    client = subject.client(None if gtrid is None else subject.new_xid()._replace(gtrid=gtrid))
    key = client.write()
    return client, key, client.mark()


def _decided(subject: Subject, gtrid: str | None = None) -> tuple[Client, str, Records]:
    """A client whose row is committed."""
    client, key, records = _marked(subject, gtrid)
    client.decide(records)
    return client, key, records


def _require_decision(subject: Subject, client: Client, key: str, records: Records, when: str) -> None:
    found = subject.tombstone(client.xid.gtrid)
    require(found.committed, f"{when}, a tombstone was put beside a row that is committed: recovery would roll back")
    require(found.branches == records, f"{when}, the row does not say what was written: {found.branches!r}")
    subject.require_visible(key, True, f"{when}, though its row is committed")


def _require_fenced(subject: Subject, client: Client, key: str, when: str) -> None:
    found = subject.tombstone(client.xid.gtrid)
    require(not found.committed, f"{when}, a row was found that was never committed: recovery would commit the others")
    subject.require_visible(key, False, f"{when}, though its row was never committed")


def dropped_client(subject: Subject) -> None:
    """A committed row outlives its client; one that was not committed does not, and can be fenced."""
    client, key, records = _decided(subject)
    client.drop()
    _require_decision(subject, client, key, records, "after its client was dropped")
    subject.marks().delete([client.xid.gtrid])
    require(client.xid.gtrid not in _gtrids(subject), "a row that was deleted is still there")
    client, key, _ = _marked(subject)
    client.drop()
    _require_fenced(subject, client, key, "after its client was dropped before COMMIT")


def killed_server(subject: Subject) -> None:
    """A committed row outlives the server; one that was not committed does not."""
    subject.require_server()
    decided, undecided = _decided(subject), _marked(subject)
    subject.kill_server()
    decided[0].drop()
    undecided[0].drop()
    _require_decision(subject, *decided, "after the server was killed")
    _require_fenced(subject, *undecided[:2], "after the server was killed")


def fence(subject: Subject) -> None:
    """Of row and tombstone only one is ever there, whichever comes first."""
    _require_decision(subject, *_decided(subject), "if the row came first")
    identity = _require_identity(subject)
    client = subject.client()
    key = client.write() if not _one_writer(subject) else None
    won = subject.tombstone(client.xid.gtrid, identity)
    require(not won.committed, "a tombstone met a row where there was none")
    again = subject.tombstone(client.xid.gtrid, identity)
    require(not again.committed, "a recoverer took another's tombstone for a row: it would commit the others")
    key = key or client.write()
    _require_refused(subject, client, key, "if the tombstone came first")
    client, key, _ = _marked(subject)
    client.branch.rollback()
    client.drop()
    _require_fenced(subject, client, key, "after its rollback")
    for _ in range(_ROUNDS):
        _race(subject)


def _one_writer(subject: Subject) -> bool:
    """Whether the database has one writer at a time, so that nobody can fence while a transaction is open."""
    return subject.datasource.resource_manager.url_is_path


def _require_identity(subject: Subject) -> str:
    """The identity of the kit's table of marks; a tombstone for another table must not be put into it."""
    client = subject.client()
    client.write()
    identity = str(client.branch.identity())
    client.drop()
    require(identity, "the table of marks has no identity")
    gtrid = subject.new_gtrid()
    require(
        attempted(subject.marks().tombstone, gtrid, "another00000"),
        "a tombstone was put into a table with another identity than the transaction's",
    )
    require(gtrid not in _gtrids(subject), "a tombstone was refused, and is in the table")
    return identity


def _require_refused(subject: Subject, client: Client, key: str, when: str) -> None:
    """The row must not be committed: a tombstone has its key."""
    refused = attempted(lambda: client.decide(client.mark()))
    if refused is not None:
        with suppress(Exception):
            client.branch.rollback()
    client.drop()
    require(refused, f"{when}, the row was committed beside it: recovery has rolled the others back")
    _require_fenced(subject, client, key, when)


def _race(subject: Subject) -> None:
    """A recoverer fences while the COMMIT of the row is on its way."""
    client, key, records = _marked(subject)
    met: list[MarkedRow] = []

    def put() -> None:
        with suppress(Exception):  # the row's lock is not free: nothing is known, and recovery tries again
            met.append(subject.marks().tombstone(client.xid.gtrid))

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    committed = attempted(client.decide, records) is None
    thread.join()
    if not committed:
        with suppress(Exception):
            client.branch.rollback()
    client.drop()
    require(
        not (committed and met and not met[0].committed),
        "a tombstone and the row's COMMIT have both succeeded: the others roll back, and this one has committed",
    )
    if committed:
        _require_decision(subject, client, key, records, "after a race with a tombstone")
    else:
        _require_fenced(subject, client, key, "after a race with a tombstone")


def two_finishing(subject: Subject) -> None:
    """Two recoverers that fence one transaction at once find the same."""
    for decided in (True, False):
        for _ in range(_ROUNDS):
            _fenced_twice(subject, decided)


def _fenced_twice(subject: Subject, decided: bool) -> None:
    client, key, _ = _decided(subject) if decided else _marked(subject)
    if not decided:
        client.branch.rollback()
    client.drop()
    met: list[MarkedRow] = []
    at_once([lambda: met.append(subject.tombstone(client.xid.gtrid))] * 2)
    found = " and ".join("a row" if each.committed else "a tombstone" for each in met)
    require(all(each.committed is decided for each in met), f"two recoverers found {found} under one key")
    subject.require_visible(key, decided, "after two recoverers have fenced its transaction")


def duplicate_gtrid(subject: Subject) -> None:
    """A second row under the key of one that is committed is refused."""
    first, key, records = _decided(subject)
    first.drop()
    second = subject.client(subject.new_xid()._replace(gtrid=first.xid.gtrid))
    second_key = second.write()
    refused = attempted(lambda: second.decide(second.mark()))
    if refused is not None:
        with suppress(Exception):
            second.branch.rollback()
    second.drop()
    require(refused, "a second row was committed under the key of one that is committed")
    subject.require_visible(second_key, False, "though its row was refused")
    _require_decision(subject, first, key, records, "after a second row under its key was refused")


def limits_of_names(subject: Subject) -> None:
    """The longest gtrid is a key, and gtrids that differ in case alone are two."""
    number = subject.new_gtrid().rpartition(":")[2].rjust(12, "0")
    longest = f"txp1:{NODE.ljust(28, '-')}:{subject.incarnation}:{number}"
    gtrid = subject.new_gtrid()
    other = gtrid.replace(NODE, NODE.title())
    for name in (longest, gtrid):
        client, key, records = _decided(subject, name)
        client.drop()
        _require_decision(subject, client, key, records, f"with the gtrid {name}")
    found = subject.marks([NODE, NODE.title()]).tombstone(other)
    require(not found.committed, f"a tombstone for {other} met the row of {gtrid}: its case is not told apart")
    require({longest, gtrid, other} <= _gtrids(subject), "a row is not listed under its gtrid")


def listing(subject: Subject) -> None:
    """The table has exactly the rows and tombstones that were written."""
    decided = [_decided(subject) for _ in range(3)]
    for client, _, _ in decided:
        client.drop()
    fenced = subject.new_gtrid()
    subject.tombstone(fenced)
    open_client, _, _ = _marked(subject)
    rows = {each.gtrid: each for each in subject.marks().read()}
    open_client.drop()
    for client, _, records in decided:
        row = rows.get(client.xid.gtrid)
        require(row is not None and row.committed, "a committed row is not listed as one")
        require(row is not None and row.branches == records, "a row is listed with other branches than were written")
        require(row is not None and row.node == NODE, "a row is listed under another node than has written it")
    require(fenced in rows and not rows[fenced].committed, "a tombstone is not listed as one")
    require(open_client.xid.gtrid not in rows, "a row is listed that is not committed")


def hanging_owner(subject: Subject) -> None:
    """A recoverer does not wait for ever for a client that hangs before its COMMIT; and never do both succeed."""
    client, key, records = _marked(subject)
    met: list[MarkedRow] = []
    thread = threading.Thread(
        target=lambda: attempted(lambda: met.append(subject.marks().tombstone(client.xid.gtrid))), daemon=True
    )
    thread.start()
    thread.join(subject.patience)
    waits = thread.is_alive()
    committed = attempted(client.decide, records) is None
    client.drop()
    thread.join(subject.patience)
    require(not waits, f"a recoverer waited longer than {subject.patience:g} s for a client that hangs")
    require(
        not (committed and met and not met[0].committed),
        "a client that hung has committed its row after a recoverer had put its tombstone",
    )
    if committed:
        _require_decision(subject, client, key, records, "after its client hung, and then committed")
    else:
        _require_fenced(subject, client, key, "after its client hung, and then was refused")


def _gtrids(subject: Subject) -> set[str]:
    return {each.gtrid for each in subject.marks().read()}
