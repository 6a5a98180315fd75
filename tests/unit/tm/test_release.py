"""An enlistment gives its connection back once, whoever releases it, and how often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import txpool
from txpool import DataSource, Status


def test_two_threads_that_release_an_enlistment_give_its_connection_back_once(tmp_path: Path) -> None:
    source = DataSource(name="local", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/data.db")
    with closing(source), ThreadPoolExecutor(2) as threads:
        for _ in range(50):
            with txpool.transaction() as tx, closing(source.connect()) as connection:
                connection.execute("select 1")
                enlistment = tx.enlist_datasource(source)
                pooled = enlistment.pooled
                barrier = Barrier(2)

                def release() -> None:
                    barrier.wait()
                    enlistment.release(Status.ROLLED_BACK, reusable=True)

                list(threads.map(lambda _: release(), range(2)))
                assert enlistment.ended
                # Its next user keeps it, though the end of the transaction releases the enlistment once more.
                again = source.pool.take()
                assert again is pooled
            assert again.holder
            source.pool.give_back(again)
        assert source.pool.statistics().size == 1
