"""A mark is on the disk when it is answered, whatever the role or the file says."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, opened, others
from txpool.errors import ProgrammingError


def test_commit_is_synchronous_where_the_role_says_otherwise(pg: Ledger) -> None:
    branch, gtrid = pg.branch(None), new_gtrid()
    pg.raw.execute("set synchronous_commit = off")
    pg.raw.execute("insert into work values (1, null)")
    branch.mark(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("on",)
    branch.record(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("off",)
    pg.raw.rollback()
    stronger = pg.branch(None)
    pg.raw.execute("set synchronous_commit = remote_apply")
    gtrid = new_gtrid()
    stronger.mark(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("remote_apply",)


@pytest.mark.parametrize(("journal", "level"), [("wal", "normal"), ("delete", "full")])
def test_sqlite_is_not_marked_without_the_sync_it_needs(
    request: pytest.FixtureRequest, tmp_path: Path, journal: str, level: str
) -> None:
    with opened("sqlite", tmp_path, request, journal) as ledger:
        ledger.xids.create()
        ledger.decided()
        branch, gtrid = ledger.branch(None), new_gtrid()
        ledger.raw.execute(f"pragma synchronous = {level}")
        ledger.driver.begin(ledger.raw)
        with pytest.raises(ProgrammingError, match="power"):
            branch.mark(gtrid, others(gtrid))
        branch.rollback()
        assert gtrid not in ledger.rows()


def test_meeting_a_row_writes_to_the_disk(lite: Ledger) -> None:
    _, gtrid = lite.decided()
    with closing(lite.driver.connect()) as keeper:  # the last one to close would empty the WAL
        keeper.execute("select 1 from xids").fetchone()
        (path,) = [file for _, name, file in keeper.execute("pragma database_list") if name == "main"]
        before = Path(f"{path}-wal").stat().st_size
        lite.xids.tombstone(gtrid)
        assert Path(f"{path}-wal").stat().st_size > before
