"""What a statement has ended, changed or written, by the command tags that the server has answered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg

from txpool.resources.postgresql.session.libpq import ACTIVE, COMMAND_OK, IDLE, INERROR, INTRANS
from txpool.resources.postgresql.session.psycopg_private import executed_by, tag_of
from txpool.resources.postgresql.statements.statement_text import OUTLIVING, may_begin_anew, may_commit
from txpool.sql.kept import text_of

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# Command tags. After these, the session's transaction, or the session itself, has changed.
_BEGINNING = frozenset({b"BEGIN", b"START TRANSACTION"})
_ENDING = frozenset({b"COMMIT", b"PREPARE TRANSACTION"})
# These may have created temporary objects or prepared statements: EXPLAIN ANALYZE, too. DO and CALL may do anything.
_PREPARING = frozenset({b"PREPARE", b"DO", b"CALL"})
_KINDS = b"TABLE,TABLE AS,VIEW,SEQUENCE,FUNCTION,PROCEDURE,AGGREGATE,TYPE,DOMAIN,OPERATOR,COLLATION,FOREIGN TABLE"
_MAKING = frozenset(b"CREATE " + kind for kind in _KINDS.split(b","))
_SELECT_INTO = b"SELECT INTO"  # not a tag of the server's, which answers SELECT INTO as any other SELECT
_CHANGING = frozenset({b"SET", b"LISTEN", b"DECLARE CURSOR", b"EXPLAIN", _SELECT_INTO, *_MAKING, *_PREPARING})
# These may have undone what pool.initial-sql has done.
_DISCARDS = frozenset(b"DISCARD " + kind for kind in (b"ALL", b"PLANS", b"SEQUENCES", b"TEMP"))
_UNDOING = frozenset({b"RESET", b"UNLISTEN", b"DEALLOCATE", b"DEALLOCATE ALL", b"DROP TABLE", *_DISCARDS})
# Empty is the tag of a ServerCursor.
_NOTED = frozenset({*_BEGINNING, *_ENDING, *_CHANGING, *_UNDOING, b"ROLLBACK", b"NOTIFY", b""})
# The beginnings of tags that show no write, though a SELECT's function may have written: then the server is asked.
_READING = (b"SELECT", b"FETCH", b"SHOW", b"EXPLAIN", b"SET", b"SAVEPOINT", b"RELEASE", b"ROLLBACK", b"NOTIFY")
# The first six bytes of the most usual tags, which show a write and nothing else.
_WRITING = frozenset({b"INSERT", b"UPDATE", b"DELETE"})
_OPEN_STATUSES = frozenset({IDLE, ACTIVE, INTRANS, INERROR})
# The statuses behind an error: the statement has failed, or it is a COPY, which execute() does not take.
_FAILING = frozenset({INERROR, ACTIVE})
_CHAINED = re.compile(r"\band\s+chain\b", re.IGNORECASE)


def ended_by(  # noqa: PLR0911 - each answer where it is known
    raw: PsycopgRawConnection, raw_cursor: psycopg.Cursor[Any]
) -> str | None:
    """As `Driver.ended_by`; it also notes on the raw connection what the statement has changed.

    If the statement failed and the session is idle now, the user's own COMMIT or ROLLBACK came before it in the
    same message. Its tags are unknown, so this answers `commit`: work that may be committed is never reported as
    rolled back. So it does if the message may have begun another transaction behind its COMMIT, and that has failed.
    """
    results, sent = executed_by(raw_cursor)
    status = raw.pgconn.transaction_status
    if not results and status == INTRANS and not raw.pgconn.pipeline_status and not sent:
        return None  # it failed before anything was sent
    if not sent or OUTLIVING[sent]:
        raw.changed = True
    if len(results) == 1 and status == INTRANS:
        tag = results[0].command_status
        if tag is not None and tag[:6] in _WRITING:
            raw.wrote = True
            return None
        tag = _tag(results[0])
        if tag not in _NOTED:
            raw.wrote = raw.wrote or tag is None or not tag.startswith(_READING)
            return None
    tags = [_tag(result) for result in results] or [tag_of(raw_cursor)]
    if not _CHANGING.isdisjoint(tags) or (isinstance(raw_cursor, psycopg.ServerCursor) and raw_cursor.withhold):
        raw.changed = True
        raw.prepared = raw.prepared or not _PREPARING.isdisjoint(tags)
    elif tags == [None] and status != INERROR:
        # It failed after the user's own COMMIT in the same message, or a pipeline has not received its answer.
        raw.changed = raw.prepared = True
    if raw.initial_sql and not _UNDOING.isdisjoint(tags):
        raw.changed = True
    raw.notified = raw.notified or b"NOTIFY" in tags
    raw.wrote = raw.wrote or not (
        isinstance(raw_cursor, psycopg.ServerCursor) or all(tag and tag.startswith(_READING) for tag in tags)
    )
    if not _ENDING.isdisjoint(tags):
        return "commit"
    if b"ROLLBACK" not in tags:
        unseen = status not in _OPEN_STATUSES or (not results and status in _FAILING and may_begin_anew(sent))
        return "commit" if status == IDLE or (unseen and may_commit(sent)) else None
    after = tags[tags.index(b"ROLLBACK") + 1 :]
    if status == IDLE:
        # Statements after a ROLLBACK in one message are committed at the message's end.
        return "rollback" if not any(after) else "commit"
    # Still in a transaction: it was a ROLLBACK TO SAVEPOINT, or a new transaction was begun.
    return "rollback" if not _BEGINNING.isdisjoint(after) or _CHAINED.search(text_of(sent)) else None


def _tag(result: PGresult) -> bytes | None:
    tag = result.command_status
    return _SELECT_INTO if result.status == COMMAND_OK and tag and tag.startswith(b"SELECT") else tag
