"""The SQL of a log in PostgreSQL: each script is one statement, which the server's connections give to `qualified`."""

from __future__ import annotations

from typing import Final

from txpool.log.sql.statements import Statements
from txpool.resources.postgresql.log.holders import HELD_LEASES

#: Records a decision; without branches, the key alone.
RECORD: Final = """INSERT INTO txpool_decisions (gtrid, branches, made)
    SELECT $1, CASE WHEN $2::text <> '' THEN $2 END, $3::float8
    FROM txpool_incarnations WHERE name = $4 AND fenced = 0 FOR SHARE ON CONFLICT DO NOTHING"""

STATEMENTS: Final = Statements(
    abort=(
        """INSERT INTO txpool_decisions AS met (gtrid, branches, made) VALUES (%(gtrid)s, NULL, %(now)s)
        ON CONFLICT (gtrid) DO UPDATE SET made = met.made RETURNING substr(branches, 1, 1)""",
    ),
    point=(
        """INSERT INTO txpool_pointers AS met (gtrid, datasource) VALUES (%(gtrid)s, %(datasource)s)
        ON CONFLICT (gtrid) DO UPDATE SET datasource = met.datasource RETURNING datasource""",
    ),
    finish=(
        """INSERT INTO txpool_finished (gtrid) VALUES (%(gtrid)s)
        ON CONFLICT (gtrid) DO UPDATE SET gtrid = excluded.gtrid""",
    ),
    # The gtrids as one text: psycopg would quote each of a list.
    forget=(
        """DELETE FROM txpool_decisions
        WHERE gtrid = ANY(string_to_array(%(joined)s, ' ')) AND branches IS NOT NULL""",
    ),
    purge=(
        """WITH pointers AS (DELETE FROM txpool_pointers WHERE gtrid = ANY(%(gtrids)s)),
        marks AS (DELETE FROM txpool_finished WHERE gtrid = ANY(%(gtrids)s))
        DELETE FROM txpool_decisions WHERE gtrid = ANY(%(gtrids)s)""",
    ),
    publish=(
        """WITH old AS (UPDATE txpool_incarnations SET fenced = fenced + 1 WHERE name = %(old)s),
        noting AS (INSERT INTO txpool_memos (kind, name, text, made)
            VALUES (%(kind)s, %(name)s, %(format)s, %(now)s))
        INSERT INTO txpool_incarnations (name, node, lease) VALUES (%(name)s, %(node)s, %(lease)s)""",
    ),
    fence=(
        """UPDATE txpool_incarnations SET fenced = fenced + 1
        WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING fenced""",
    ),
    revive=(
        """WITH back AS (DELETE FROM txpool_expired
            WHERE name = %(name)s AND (%(every)s OR node = ANY(%(nodes)s)) RETURNING name, node, lease)
        INSERT INTO txpool_incarnations (name, node, lease, fenced) SELECT name, node, lease, 1 FROM back
        RETURNING fenced""",
    ),
    incarnations=(
        f"""WITH {HELD_LEASES} SELECT name, fenced, fenced = 0 AND lease = ANY (TABLE held)
        FROM txpool_incarnations WHERE %(every)s OR node = ANY(%(nodes)s)""",
    ),
    in_use=(f"WITH {HELD_LEASES} SELECT name FROM txpool_incarnations WHERE lease = ANY (TABLE held)",),
    # It also deletes the side records of incarnations that the first version expired, which leaves them.
    expire=(
        """WITH gone AS (DELETE FROM txpool_incarnations
            WHERE name = ANY(%(names)s) AND fenced > 0 AND (%(every)s OR node = ANY(%(nodes)s))
            RETURNING name, node, lease),
        noting AS (DELETE FROM txpool_memos WHERE kind = 'incarnation'
            AND name = ANY (SELECT name FROM gone UNION ALL SELECT name FROM txpool_expired))
        INSERT INTO txpool_expired (name, node, lease, since) SELECT name, node, lease, %(now)s FROM gone""",
    ),
    expired=(
        """SELECT name FROM txpool_expired
        WHERE (%(all)s OR name = ANY(%(names)s)) AND (%(every)s OR node = ANY(%(nodes)s))""",
    ),
    record_heuristic=(
        """INSERT INTO txpool_heuristics (gtrid, bqual, datasource, decided, ended, noted)
        VALUES (%(gtrid)s, %(bqual)s, %(datasource)s, %(decided)s, %(ended)s, %(noted)s) ON CONFLICT DO NOTHING""",
    ),
    put_record=(
        """INSERT INTO txpool_memos (kind, name, text, made)
        VALUES (%(kind)s, %(name)s, %(text)s, %(recorded_at)s)
        ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text, made = excluded.made""",
    ),
    delete_records=("DELETE FROM txpool_memos WHERE kind = %(kind)s AND name = ANY(%(names)s)",),
    set_meta=(
        """INSERT INTO txpool_meta VALUES (%(name)s, %(value)s)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value""",
    ),
)
