"""txpool.configure(): the datasources of its file are known by name; an error leaves the coordinator as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from txpool.tm.manager import get_manager

DATASOURCE = "driver = sqlite3\nmode = local\nurl = sqlite:///{name}.db\nname = {name}\n"


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    """A coordinator's file with two datasources' files, and a coordinator that is in force before."""
    txpool.configure(node_name="before", log_url="memory:")
    for name in ("first", "second"):
        (tmp_path / f"{name}.properties").write_text(DATASOURCE.format(name=name))
    path = tmp_path / "txpool.properties"
    path.write_text("node.name = after\nlog.url = memory:\ndatasources = first.properties, second.properties\n")
    yield path
    for name in ("first", "second"):
        txpool.DataSource.from_properties(tmp_path / f"{name}.properties").close()


def test_the_datasources_of_the_file_are_known_by_name(conf: Path) -> None:
    txpool.configure(conf)
    assert get_manager().settings.node_name == "after"
    for name in ("first", "second"):
        with closing(txpool.connect(name)) as connection:
            connection.execute("select 1")


def test_a_datasource_whose_file_is_wrong_leaves_the_coordinator_as_it_was(conf: Path) -> None:
    second = conf.with_name("second.properties")
    right = second.read_text()
    second.write_text(right + "pool.sizes = 1\n")
    with pytest.raises(txpool.ConfigurationError, match=r"pool\.sizes"):
        txpool.configure(conf)
    second.write_text(right)
    assert get_manager().settings.node_name == "before"


def test_two_datasources_of_one_name_leave_the_coordinator_as_it_was(conf: Path) -> None:
    other = txpool.DataSource("second", driver="sqlite3", mode="local", url="sqlite:///other.db")
    txpool.register(other)
    try:
        with pytest.raises(txpool.ConfigurationError, match="another datasource is registered as second"):
            txpool.configure(conf)
    finally:
        other.close()
    assert get_manager().settings.node_name == "before"
