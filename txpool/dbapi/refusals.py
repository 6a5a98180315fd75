"""The errors of what a connection refuses inside a transaction: what it was, what stays true, what to do instead."""

from __future__ import annotations

from txpool.errors import InterfaceError, NotSupportedError, ProgrammingError
from txpool.xid import parse


def end_refused(command: str, datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a handle's commit() or rollback() inside a transaction, if it joins no commits."""
    return ProgrammingError(
        f"{command}() on a connection of {datasource} inside {gtrid}: its work ends with the transaction "
        f"(by `txpool.{command}()`, or at the end of the block), which is as it was. A library that calls "
        f"{command}() by itself needs managed.commit = join; SQLAlchemy and pandas need txpool.create_engine()."
    )


def commit_in_block(command: str, datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a handle's commit() or rollback() inside a block of the driver's conn.transaction()."""
    return ProgrammingError(
        f"{command}() on a connection of {datasource} in {gtrid}, inside a block of conn.transaction(): leave the "
        "block first. Nothing was done."
    )


def not_innermost(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a handle's rollback() that would undo another handle's later work."""
    return ProgrammingError(
        f"datasource {datasource}: rollback() on one connection in {gtrid} would undo what another has done since, so "
        "the transaction is rollback-only now: what was done within it rolls back. End each connection's work before "
        "the next one begins."
    )


def given_up(datasource: str, gtrid: str, why: str) -> ProgrammingError:
    """The cause of a rollback for a handle that SQLAlchemy has given up before its commit()."""
    return ProgrammingError(
        f"datasource {datasource}: a connection in {gtrid} was given up by SQLAlchemy before its commit(), {why}. So "
        "all rolls back"
    )


def disturbed(datasource: str, gtrid: str) -> ProgrammingError:
    """The cause of a rollback for a block of the driver's own, which overlaps another task's or thread's work."""
    return ProgrammingError(
        f"datasource {datasource}: a transaction() block of a connection in {gtrid} was undone, and with it what "
        "another task or thread has done there meanwhile. So all rolls back. The connections of a transaction to one "
        "datasource are one session: let such a block end before another task works there"
    )


def ended_by_sql(command: str, datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a statement by which the user's own SQL has ended the local transaction."""
    before = "committed, and no rollback will undo it" if command == "commit" else "undone"
    return ProgrammingError(
        f"datasource {datasource}: the SQL {command.upper()} has ended its part in {gtrid}, which can only roll back "
        f"now: what was done here before it is {before}. Leave commit and rollback to the transaction."
    )


def would_end(command: str, datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a statement that would end, or begin, the local transaction by the user's own SQL."""
    return ProgrammingError(
        f"datasource {datasource}: the SQL {command} inside {gtrid}, which alone begins and ends its part there, was "
        "not sent: nothing was done, and the transaction goes on. Leave it out: `txpool.commit()`, `txpool.rollback()` "
        "and the end of the block end all parts together. To undo a part of the work, use SAVEPOINT and ROLLBACK TO."
    )


def may_end_unseen(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of a statement that may end the local transaction and begin another, if nobody would see that."""
    return ProgrammingError(
        f"datasource {datasource}: this SQL may end the part of {gtrid} there and begin another transaction, which "
        "neither COPY nor a cursor of the driver's own over this connection would show. It was not sent: nothing was "
        "done, and the transaction goes on. Leave commit and rollback out, or execute it by the connection's execute()."
    )


def of_parent_process(datasource: str, gtrid: str) -> InterfaceError:
    """The error of an enlisted connection that is used in a forked child."""
    return InterfaceError(
        f"this connection of {datasource} is enlisted in {gtrid}, which is the parent process's: connect() in this "
        "process. Nothing was sent."
    )


def of_another_transaction(datasource: str, gtrid: str, ambient: str) -> ProgrammingError:
    """The error of an enlisted connection that is used if another transaction is ambient."""
    return ProgrammingError(
        f"this connection of {datasource} is enlisted in {gtrid}, and here {ambient} is ambient: connect() gives one "
        "that belongs to it. Nothing was done."
    )


def not_ambient_here(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of an enlisted connection that is used if its transaction is suspended."""
    return ProgrammingError(
        f"this connection of {datasource} is enlisted in {gtrid}, which is not ambient here: resume() it first, or "
        "connect() outside it. Nothing was done."
    )


def of_dropped_transaction(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of an enlisted connection whose transaction was dropped without its end."""
    return ProgrammingError(
        f"{gtrid}, in which this connection of {datasource} is enlisted, was dropped without its end, and rolls back. "
        "Nothing was done."
    )


def fixed_by_transaction(name: str, value: object, gtrid: str) -> ProgrammingError:
    """The error of a handle that would change how the transaction has begun on all of its connections."""
    return ProgrammingError(
        f"{name} cannot be {value!r} in {gtrid}, which was begun with another for all of its connections. "
        "Nothing was done."
    )


def cannot_join(datasource: str, gtrid: str, end: str) -> ProgrammingError:
    """The error of a plain connection's first statement inside a transaction that it cannot join.

    `end` is what ends its own open work; empty if it is a connection of other credentials.
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


def script_refused(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of executescript() inside a transaction."""
    return ProgrammingError(
        f"executescript() on a connection of {datasource} inside {gtrid} would commit before it begins: execute() its "
        "statements one by one. Nothing was done."
    )


def autocommit_refused(datasource: str, gtrid: str) -> ProgrammingError:
    """The error of switching autocommit on inside a transaction."""
    return ProgrammingError(
        f"autocommit cannot be switched on for a connection of {datasource} inside {gtrid}, which owns it: what must "
        "not be part of that needs a connection outside, see txpool.suspend(). Nothing was done."
    )


def mode_refused(name: str, value: object, datasource: str, gtrid: str) -> ProgrammingError:
    """The error of changing how local transactions begin on a connection inside a transaction."""
    return ProgrammingError(
        f"{name} cannot be {value!r} on a connection of {datasource} inside {gtrid}, which owns it: leave it, and set "
        "it on connections outside. Nothing was done."
    )


def mode_too_late(name: str, value: object, datasource: str, gtrid: str) -> str:
    """The text of the driver's error if how a transaction begins is set once it has begun there."""
    return (
        f"{name} cannot become {value!r} on a connection of {datasource} inside {gtrid}, which has begun there. Set it "
        "before the first statement, or by txpool.transaction(isolation=…, read_only=…). Nothing was done."
    )


def two_phase_refused(name: str, datasource: str, gtrid: str) -> NotSupportedError:
    """The error of a tpc_*() inside a transaction."""
    return NotSupportedError(
        f"{name}() on a connection of {datasource} inside {gtrid}: txpool.transaction() prepares and commits by "
        "itself, so leave it out. Nothing was done."
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
        f"in all its databases. If neither can: `txpool-recovery {command} {branch.gtrid}`. Nothing was done."
    )
