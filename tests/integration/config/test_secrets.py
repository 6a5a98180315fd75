"""No password appears in anything that a full run writes: logs, errors, listings, decisions, pickles, files."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from txpool.demo.folder import DemoFolder
from txpool.demo.job import Flights, write_flights

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture
def stage(require: Require) -> Iterator[DemoFolder]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        stage = DemoFolder(Path(folder))
        stage.build()
        yield stage
        stage.close()


def _run(*arguments: str, failpoints: str = "") -> str:
    environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], check=False, env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def _everything_below(folder: Path, *, but: set[Path]) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path not in but and "postgres" not in path.relative_to(folder).parts:
            yield path, path.read_bytes()


@pytest.mark.costly
def test_a_full_run_shows_no_password(stage: DemoFolder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = stage.server.password
    conf = stage.conf / "recovery.properties"
    said = [_run("recovery", "init", "--conf", str(conf))]

    # A run that succeeds, and one that is killed after its decision, and recovered.
    txpool.configure(stage.conf / "txpool.properties")
    write_flights(Flights(100), stage.conf, 1)
    said.append(
        _run(
            "txpool.demo.job", str(stage.folder), "2", "--rows=100", "--no-spark", failpoints="coordinator.decided=kill"
        )
    )
    listed = _run("recovery", "list", "--json", "--conf", str(conf))
    gtrid = next(word for word in listed.split('"') if word.startswith("txp1:"))
    said += [
        listed,
        _run("recovery", "list", "--conf", str(conf)),
        _run("recovery", "show", gtrid, "--conf", str(conf)),
    ]
    files = [*_everything_below(stage.folder, but={stage.conf / "password"})]
    said += [_run("recovery", "scan", "--json", "--conf", str(conf))]
    said += [_run("txpool", "check", str(stage.conf / f"{name}.properties")) for name in ("flights", "ledger")]

    # Errors: a wrong password, an unreachable server, a wrong statement, a pool that is exhausted.
    flights = txpool.DataSource.from_properties(stage.conf / "flights.properties")
    said += [repr(flights), repr(flights.settings), str(flights.statistics()), repr(pickle.dumps(flights))]
    with txpool.transaction() as tx, flights.connect() as connection:
        said += [repr(tx), repr(connection), repr(connection.cursor())]
    url = stage.server.url("flights")
    wrong = "another-" + secret
    for options in ({"password": wrong}, {"password": secret, "driver_port": 1}):
        source = txpool.DataSource(name="wrong", driver="psycopg", url=url, pool_max_wait=1, **options)
        said += [repr(source), repr(source.settings)]
        with pytest.raises(txpool.OperationalError) as raised:
            source.connect()
        said.append("".join(traceback.format_exception(raised.value)))
        with pytest.raises(txpool.ConfigurationError) as refused:
            pickle.dumps(source)
        said.append("".join(traceback.format_exception(refused.value)))
        source.close()
    in_the_url = url.replace("txpool@", f"txpool:{secret}@")
    source = txpool.DataSource(name="inline", driver="psycopg", url=in_the_url, pool_max_size=1, pool_max_wait=0.1)
    held = source.connect()
    with pytest.raises(txpool.PoolTimeout) as exhausted:
        source.connect()
    held.close()
    said += [repr(source), repr(source.settings), "".join(traceback.format_exception(exhausted.value))]
    for closed in (source, flights):
        closed.close()
    txpool.configure(node_name="tests", log_url="memory:")

    assert len(files) > 5
    # As they are now beside what they were before recovery: of that, some files have nothing left.
    files += _everything_below(stage.folder, but={stage.conf / "password"})
    assert any(gtrid.encode() in text for _, text in files), "the files that were searched are the right ones"
    assert [path for path, text in files if secret.encode() in text] == []
    assert secret not in caplog.text
    assert len("".join(said)) > 5000
    assert secret not in "".join(said)
