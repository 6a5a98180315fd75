"""What recovery shows of sessions: what it can know, and where their files lead now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from recovery.scan import outboxes
from txpool import DataSource
from txpool.config.settings import DataSourceSettings
from txpool.datasource import Source
from txpool.resources.messages.tables import Outgoing, tables_of


def test_a_session_that_parks_in_a_topic_is_not_said_to_have_parked_none(tmp_path: Path) -> None:
    (tmp_path / "o.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///o.db\n")
    shown = []
    for parking in ("orders-parked", "topic:orders-parked"):
        file = tmp_path / "in.properties"
        file.write_text(
            "driver = kafka\nurl = kafka://127.0.0.1:9\ntopic = orders\ngroup = shop\n"
            f"offsets.datasource = o.properties\nparking = {parking}\n"
        )
        source = Source(DataSourceSettings.load(file))
        shown.append(outboxes._is_meant(source, ["*"]))
    assert shown == [True, False]


def test_the_datasource_of_a_session_is_where_its_file_leads_now(tmp_path: Path) -> None:
    """A daemon that reads its files again keeps no former password and no former address."""
    file, queue = tmp_path / "o.properties", tmp_path / "q.properties"
    queue.write_text("driver = sql-queue\nqueue = orders\nqueue.datasource = o.properties\n")
    waiting = []
    for count in (1, 2):
        file.write_text(f"driver = sqlite3\nmode = local\nurl = sqlite:///o{count}.db\n")
        with DataSource(name="o", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/o{count}.db") as source:
            tables_of(source).ensure(source)
            with closing(source.connect()) as connection:
                for each in range(count):
                    tables_of(source).insert(connection.cursor(), "orders", Outgoing(str(each), b"", None, {}, 0))
                connection.commit()
        found = outboxes._look_into_session(DataSourceSettings.load(queue))
        assert found is not None
        waiting.append(found.total)
    assert waiting == [1, 2]
