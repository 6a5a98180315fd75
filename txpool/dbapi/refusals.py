"""The errors of what a connection refuses inside a transaction: what it was, what stays true, what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import ProgrammingError
from txpool.xid import parse

if TYPE_CHECKING:
    from txpool.datasource import DataSource


def end_refused(command: str, datasource: DataSource, gtrid: str) -> ProgrammingError:
    """The error of a handle's commit() or rollback() inside a transaction, without managed.commit = join."""
    return ProgrammingError(
        f"{command}() on a connection of {datasource.name} inside {gtrid}: its work ends with the transaction "
        f"(by `txpool.{command}()`, or at the end of the block), which is as it was. Libraries that call "
        f"{command}(), as SQLAlchemy and pandas do, need managed.commit = join."
    )


def cannot_join(datasource: str, gtrid: str, end: str) -> ProgrammingError:
    """The error of a plain connection's first statement inside a transaction that it cannot join.

    `end` is what ends its own open work; empty where it is a connection of other credentials.
    """
    if not end:
        return ProgrammingError(
            f"this connection of {datasource} cannot join {gtrid}: it was opened by connect(user=…), and its branch "
            "would have an owner that recovery does not know. Nothing was done. Write a datasource of its own for that "
            "user, or use the connection outside the transaction."
        )
    return ProgrammingError(
        f"this connection of {datasource} cannot join {gtrid}: it has open work of its own from before. {end} "
        "it first. Nothing was done."
    )


def script_refused() -> ProgrammingError:
    """The error of executescript() inside a transaction."""
    return ProgrammingError(
        "executescript() commits before it begins, so it cannot run inside a transaction: execute() its statements "
        "one by one. Nothing was done."
    )


def reserved_name(name: str, xid: str) -> ProgrammingError:
    """The error of a tpc_*() with a name that is txpool's own."""
    branch = parse(xid)
    if name == "tpc_begin" or branch is None:
        return ProgrammingError(
            f"{name}(): {xid!r} is a name of txpool's own branches, which recovery ends by its decision log: take "
            "another name. Nothing was done."
        )
    command = name.removeprefix("tpc_")
    return ProgrammingError(
        f"{name}(): {xid!r} is a branch of txpool's transaction {branch.gtrid}, which its coordinator or recovery ends "
        f"in all its databases. Where neither can: `txpool-recovery {command} {branch.gtrid}`. Nothing was done."
    )
