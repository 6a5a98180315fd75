"""The SQL of a log in MariaDB or MySQL, in READ COMMITTED.

There is no RETURNING in MySQL, and InnoDB writes nothing for an update that changes nothing. So what must write counts
up, in the column `touched`, and a SELECT follows in the same transaction: the row that was written is locked meanwhile.
"""

from __future__ import annotations

from typing import Final

from txpool.log.sql.statements import Statements

_NODES: Final = "(%(every)s OR node IN %(nodes)s)"
#: A lease is a lock whose name only the registry has, held by the very session that took it.
_HELD: Final = "is_used_lock(lease) <=> session"
#: Whether what is committed now outlives a crash of the server and of its machine.
DURABLE: Final = "@@innodb_flush_log_at_trx_commit = 1 AND (NOT @@log_bin OR @@sync_binlog = 1)"

#: Records a decision; without branches, the key alone. It reads the row as it is now, and locks it.
RECORD: Final = f"""INSERT INTO txpool_decisions (gtrid, branches, made)
    SELECT %(gtrid)s, nullif(%(branches)s, ''), %(now)s FROM txpool_incarnations
    WHERE name = %(incarnation)s AND fenced = 0 AND {DURABLE} LOCK IN SHARE MODE"""

STATEMENTS: Final = Statements(
    abort=(
        """INSERT INTO txpool_decisions (gtrid, branches, made) VALUES (%(gtrid)s, NULL, %(now)s)
        ON DUPLICATE KEY UPDATE touched = touched + 1""",
        "SELECT substr(branches, 1, 1) FROM txpool_decisions WHERE gtrid = %(gtrid)s",
    ),
    point=(
        """INSERT INTO txpool_pointers (gtrid, datasource) VALUES (%(gtrid)s, %(datasource)s)
        ON DUPLICATE KEY UPDATE touched = touched + 1""",
        "SELECT datasource FROM txpool_pointers WHERE gtrid = %(gtrid)s",
    ),
    finish=("INSERT INTO txpool_finished (gtrid) VALUES (%(gtrid)s) ON DUPLICATE KEY UPDATE touched = touched + 1",),
    forget=("DELETE FROM txpool_decisions WHERE gtrid IN %(gtrids)s AND branches IS NOT NULL",),
    purge=(
        "DELETE FROM txpool_decisions WHERE gtrid IN %(gtrids)s",
        "DELETE FROM txpool_finished WHERE gtrid IN %(gtrids)s",
        "DELETE FROM txpool_pointers WHERE gtrid IN %(gtrids)s",
    ),
    publish=(
        "UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %(old)s",
        "INSERT INTO txpool_memos (kind, name, text, made) VALUES (%(kind)s, %(name)s, %(format)s, %(now)s)",
        """INSERT INTO txpool_incarnations (name, node, lease, session)
        VALUES (%(name)s, %(node)s, %(lease)s, %(session)s)""",
    ),
    fence=(
        f"UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %(name)s AND {_NODES}",
        f"SELECT fenced FROM txpool_incarnations WHERE name = %(name)s AND {_NODES}",
    ),
    revive=(
        f"""INSERT INTO txpool_incarnations (name, node, lease, session, fenced)
        SELECT name, node, '', 0, 1 FROM txpool_expired WHERE name = %(name)s AND {_NODES} FOR UPDATE""",
        f"SELECT name FROM txpool_expired WHERE name = %(name)s AND {_NODES}",
        f"DELETE FROM txpool_expired WHERE name = %(name)s AND {_NODES}",
    ),
    incarnations=(f"SELECT name, fenced, fenced = 0 AND {_HELD} FROM txpool_incarnations WHERE {_NODES}",),
    in_use=(f"SELECT name FROM txpool_incarnations WHERE {_HELD}",),
    # An incarnation that is fenced between two of these statements stays: only what was moved is deleted.
    expire=(
        f"""INSERT INTO txpool_expired (name, node, since) SELECT name, node, %(now)s FROM txpool_incarnations
        WHERE name IN %(names)s AND fenced > 0 AND {_NODES} FOR UPDATE""",
        """DELETE FROM txpool_memos WHERE kind = 'incarnation'
        AND name IN %(names)s AND name IN (SELECT name FROM txpool_expired)""",
        """DELETE FROM txpool_incarnations
        WHERE name IN %(names)s AND name IN (SELECT name FROM txpool_expired)""",
    ),
    expired=(f"SELECT name FROM txpool_expired WHERE (%(all)s OR name IN %(names)s) AND {_NODES}",),
    record_heuristic=(
        """INSERT INTO txpool_heuristics (gtrid, bqual, datasource, decided, ended, noted)
        VALUES (%(gtrid)s, %(bqual)s, %(datasource)s, %(decided)s, %(ended)s, %(noted)s)
        ON DUPLICATE KEY UPDATE noted = noted""",
    ),
    put_record=(
        """INSERT INTO txpool_memos (kind, name, text, made)
        VALUES (%(kind)s, %(name)s, %(text)s, %(recorded_at)s)
        ON DUPLICATE KEY UPDATE text = VALUES(text), made = VALUES(made)""",
    ),
    delete_records=("DELETE FROM txpool_memos WHERE kind = %(kind)s AND name IN %(names)s",),
    set_meta=(
        """INSERT INTO txpool_meta (name, value) VALUES (%(name)s, %(value)s)
        ON DUPLICATE KEY UPDATE value = VALUES(value)""",
    ),
)

_NAME: Final = "varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_TEXT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_ENGINE: Final = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
#: Its tables, the first one first: if it has no row, the others are still to be made. Names compare by their bytes.
SCHEMA: Final = (
    f"CREATE TABLE IF NOT EXISTS txpool_meta (name {_NAME} PRIMARY KEY, value varchar(255) {_TEXT} NOT NULL) {_ENGINE}",
    f"""CREATE TABLE IF NOT EXISTS txpool_incarnations (name {_NAME} PRIMARY KEY, node {_NAME}, lease {_NAME},
    session bigint unsigned NOT NULL, fenced int NOT NULL DEFAULT 0) {_ENGINE}""",
    f"""CREATE TABLE IF NOT EXISTS txpool_decisions (gtrid {_NAME} PRIMARY KEY, branches longtext {_TEXT},
    made double NOT NULL, touched int NOT NULL DEFAULT 0) {_ENGINE}""",
    f"CREATE TABLE IF NOT EXISTS txpool_finished (gtrid {_NAME} PRIMARY KEY, touched int NOT NULL DEFAULT 0) {_ENGINE}",
    f"""CREATE TABLE IF NOT EXISTS txpool_pointers (gtrid {_NAME} PRIMARY KEY, datasource longtext {_TEXT} NOT NULL,
    touched int NOT NULL DEFAULT 0) {_ENGINE}""",
    f"""CREATE TABLE IF NOT EXISTS txpool_heuristics (gtrid {_NAME}, bqual {_NAME},
    datasource longtext {_TEXT} NOT NULL, decided {_NAME}, ended {_NAME}, noted double NOT NULL,
    PRIMARY KEY (gtrid, bqual)) {_ENGINE}""",
    f"""CREATE TABLE IF NOT EXISTS txpool_expired (name {_NAME} PRIMARY KEY, node {_NAME}, since double NOT NULL)
    {_ENGINE}""",
    f"""CREATE TABLE IF NOT EXISTS txpool_memos (kind {_NAME}, name varchar(700) {_TEXT} NOT NULL,
    text longtext {_TEXT} NOT NULL, made double NOT NULL, PRIMARY KEY (kind, name)) {_ENGINE}""",
)
