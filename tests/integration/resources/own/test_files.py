"""A resource that a file names: what is refused, and what a check says of it."""

from __future__ import annotations

import sys
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.own.outboxes import file_of
from tests.support.outbox import Outbox
from txpool.check import check
from txpool.config.settings import DataSourceSettings
from txpool.resource import find


def test_what_is_no_resource_is_refused(log: Path, outbox: Any, tmp_path: Path) -> None:
    database = txpool.DataSource(name="outbox", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/outbox.db")
    with txpool.transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match=r"no txpool\.resource\.Resource"):
            tx.enlist(database)
        tx.enlist(outbox)
        with pytest.raises(txpool.ProgrammingError, match="another resource"):
            tx.enlist(Outbox("outbox", tmp_path))
        with pytest.raises(txpool.ProgrammingError, match="two datasources are called outbox"):
            database.connect()
    with (
        txpool.transaction(isolation="serializable") as tx,
        pytest.raises(txpool.ProgrammingError, match="serializable"),
    ):
        tx.enlist(outbox)
    database.close()


@pytest.mark.parametrize("name", ["my outbox", "a:b", "", "x" * 33, "rapports-été"])
def test_a_name_that_no_branch_may_have_is_refused(name: str, log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx, pytest.raises(txpool.ProgrammingError, match="1 to 32 of the characters"):
        tx.enlist(Outbox(name, outbox.path))


def test_a_module_that_was_corrected_is_tried_again(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(log.parent))
    path = file_of(outbox, log, "corrected:Outbox")
    for text in ("raise RuntimeError", "Outbox = 7"):
        (log.parent / "corrected.py").write_text(text)
        invalidate_caches()
        sys.modules.pop("corrected", None)
        with pytest.raises(txpool.ConfigurationError, match="corrected:Outbox"):
            find(path)
    (log.parent / "corrected.py").write_text("from tests.support.outbox import Outbox  # corrected")
    invalidate_caches()
    del sys.modules["corrected"]
    assert find(path).identity() == outbox.identity()


def test_it_is_checked(log: Path, outbox: Any) -> None:
    path = file_of(outbox, log)
    path.chmod(0o600)
    (section,) = check(path).sections
    assert [each.severity.value for each in section.findings] == ["ok", "ok"]
    assert outbox.identity() in section.findings[1].found
    outbox.path.rename(outbox.path.with_name("elsewhere"))
    (section,) = check(path).sections
    assert [each.topic for each in section.findings if each.severity.value == "wrong"] == ["connection"]


def test_a_file_that_others_can_write_runs_no_code(log: Path, outbox: Any, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\nraise RuntimeError\n")
    path = file_of(outbox, log, "trap:Trap")
    path.chmod(0o666)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        for load in (DataSourceSettings.load, find, txpool.connect):
            with pytest.raises(txpool.ConfigurationError, match="names code to run"):
                load(path)
        assert not (tmp_path / "sprung").exists()
        path.chmod(0o600)
        with pytest.raises(txpool.ConfigurationError, match=r"trap:Trap.*RuntimeError"):
            find(path)


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        ("tests.support.outbox:Nothing", "no attribute 'Nothing'"),
        ("tests.support.outbox:Message", "neither a txpool.resource.Resource nor a ResourceManager"),
        ("no_such_module_here:Outbox", "No module named"),
        ("tests.support.outbox.Outbox", "is not one of them"),
    ],
)
def test_a_driver_that_leads_nowhere(driver: str, says: str, log: Path, outbox: Any) -> None:
    with pytest.raises(txpool.ConfigurationError, match=says):
        find(file_of(outbox, log, driver))


def test_a_file_leads_to_one_resource(log: Path, outbox: Any, tmp_path: Path) -> None:
    path = file_of(outbox, log)
    resource = find(path)
    assert find(path) is resource
    assert (resource.path, resource.identity(), resource.file) == (outbox.path, outbox.identity(), str(path))
    with txpool.transaction(), pytest.raises(txpool.NotSupportedError, match="has no connections"):
        txpool.connect(path)
    path.chmod(0o600)
    path.write_text("driver = tests.support.outbox:Outbox\nurl = file://me:secret@host/x\n")
    with pytest.raises(txpool.ConfigurationError) as refused:
        DataSourceSettings.load(path)
    assert "secret" not in str(refused.value)
    path.write_text("driver = tests.support.outbox:Outbox\nurl = s3://bucket\n")
    with pytest.raises(txpool.ConfigurationError, match="write file:/srv/folder"):
        DataSourceSettings.load(path)
    path.write_text("driver = tests.support.outbox:Outbox\nmode = cmr\nurl = file:outbox\n")
    with pytest.raises(txpool.ConfigurationError, match="mode"):
        DataSourceSettings.load(path)


class Talkative(Outbox):  # type: ignore[misc]
    def __init__(self, name: str, path: str, password: str) -> None:
        super().__init__(name, path)
        raise ConnectionError(f"cannot log in with {password}")


def test_an_error_of_its_making_shows_no_secret(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its text, nor by the error that is its cause."""
    monkeypatch.setenv("OUTBOX_PASSWORD", "tell-nobody")
    path = file_of(outbox, log, f"{__name__}:Talkative")
    path.write_text(f"{path.read_text()}password = ${{env:OUTBOX_PASSWORD}}\n")
    with pytest.raises(txpool.ConfigurationError, match=r"cannot be made: ConnectionError: cannot log in") as caught:
        find(path)
    assert "tell-nobody" not in f"{caught.value} {caught.value.__cause__}"
