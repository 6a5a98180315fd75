"""The tables of messages in MariaDB and MySQL, in the datasource's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.messages.tables import DELETE, LOCKS, READ, MessageTables
from txpool.resources.mysql.tables.own_tables import create_table, database_of, is_ours, require_database
from txpool.resources.mysql.tables.records import outside_pool

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

_NAMES: Final = {
    "messages": "txpool_messages",
    "positions": "txpool_message_positions",
    "locks": "txpool_message_locks",
    "tries": "txpool_message_tries",
}
_NAME: Final = "varchar(249) character set utf8mb4 collate utf8mb4_bin not null"
_BY_NUMBER: Final = "force index (primary)"
_MESSAGES: Final = f"""
    number bigint auto_increment primary key, queue {_NAME}, id text character set utf8mb4 not null,
    message_key text character set utf8mb4, body longblob, headers mediumtext character set utf8mb4 not null,
    sent_at double not null, due double not null, tries int not null default 0, error text character set utf8mb4,
    key (queue, number)
"""
_POSITIONS: Final = f"""
    consumer {_NAME}, topic {_NAME}, part int, position bigint not null, tries int not null default 0,
    primary key (consumer, topic, part)
"""
_TRIES: Final = f"""
    consumer {_NAME}, topic {_NAME}, part int, place bigint,
    message text character set utf8mb4 collate utf8mb4_bin not null, tries int not null,
    primary key (consumer, topic, part, place)
"""


class MySQLMessages(MessageTables):
    """The tables of messages in MariaDB and MySQL."""

    parameter = "%s"
    #: Not of the local time, which comes twice when summer time ends.
    now = "(timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1e6)"
    reads_snapshots = True
    # By another plan, which it has for few rows, it would lock all rows of the queue, and wait for those of others.
    reads = READ.replace("{messages}", f"{{messages}} {_BY_NUMBER}")
    deletes = DELETE.replace("{messages}", f"{{messages}} using {{messages}} {_BY_NUMBER}")

    def create(self, source: DataSource) -> None:
        with outside_pool(source.driver_adapter) as raw:
            require_database(raw, source.name)
            raw.session.run("set session transaction read write")
            create_table(raw.session, _NAMES["locks"], "number int primary key")
            create_table(raw.session, _NAMES["positions"], _POSITIONS)
            create_table(raw.session, _NAMES["tries"], _TRIES)
            create_table(raw.session, _NAMES["messages"], _MESSAGES)
            if int(raw.session.run(f"select count(*) from {_NAMES['locks']}")[0][0]) < LOCKS:
                numbers = ", ".join(f"({number})" for number in range(LOCKS))
                raw.session.run(f"insert ignore into {_NAMES['locks']} values {numbers}")

    @contextmanager
    def apart(self, source: DataSource) -> Iterator[Any]:
        with outside_pool(source.driver_adapter) as raw, closing(raw.cursor()) as cursor:
            yield cursor

    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        require_database(raw, datasource)
        return is_ours(raw.session, _NAMES["messages"])

    def names(self, cursor: Any) -> dict[str, str]:
        database = database_of(cursor)
        return {name: f"{database}.{table}" for name, table in _NAMES.items()}
