"""The former version beside folders of files, which it does not know: it leaves them alone, and forgets no decision.

TXPOOL_OLD_CHECKOUT names a checkout of it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.upgrade.former import Former, Make
from tests.integration.upgrade.test_side_by_side import command, configure, ended, recover, start

pytestmark = pytest.mark.former

_WRITER = """
    import sys
    import txpool
    from txpool import failpoints

    txpool.configure("txpool.properties")
    number, *names = sys.argv[1:]
    with txpool.transaction():
        for name in names:
            txpool.connect(f"{name}.properties").cursor().execute(f"insert into t values ({number})")
        for name in (f"n{number}", "latest"):
            with txpool.folder("exports.properties", name, overwrite=True).open("data") as file:
                file.write(number)
"""


class Beside:
    """What the former version has left, and a folder of files beside it."""

    def __init__(self, site: Former) -> None:
        self.site = site
        self.exports = site.folder / "exports"
        self.exports.mkdir()
        recover(site, "new", 0, 1)
        self.write(40, "one")

    def write(self, number: int, *names: str, failpoints: str = "") -> None:
        configure(self.site, "new")
        self.site.write("exports", "driver = files\nfolder = exports")
        process = start(self.site, "new", _WRITER, str(number), *names, failpoints=failpoints)
        ended(process, -signal.SIGKILL if failpoints else 0)
        self.site.disconnect()

    def recover_new(self) -> None:
        configure(self.site, "new")
        text = self.site.conf.read_text().replace("datasources = ", "datasources = exports.properties, ")
        self.site.conf.write_text(text)
        process = start(self.site, "new", "", "-m", "recovery", "scan", "--conf", "recovery.properties")
        output, errors = process.communicate(timeout=600)
        assert process.returncode in (0, 1), output + errors

    def files(self) -> dict[str, str]:
        """Every file, and every folder, with what is in it."""
        found = {}
        for folder, folders, files in os.walk(self.exports):
            for name in files:
                path = Path(folder, name)
                found[str(path.relative_to(self.exports))] = path.read_text()
            found |= {f"{Path(folder, name).relative_to(self.exports)}/": "" for name in folders}
        return found

    def published(self) -> dict[str, str]:
        return {name: text for name, text in self.files().items() if name.endswith("/data") and name[0] != "."}

    def left(self) -> list[str]:
        return [name for each in ("staged", "prepared") for name in os.listdir(self.exports / ".txpool" / each)]


@pytest.fixture
def beside(former: Make, store: str) -> Beside:
    return Beside(former(store))


@pytest.mark.parametrize(
    ("store", "point", "commits"),
    [
        ("sqlite", "files.staged", False),
        ("sqlite", "coordinator.prepared", False),
        ("server", "coordinator.prepared", False),
        ("sqlite", "coordinator.decided", True),
        ("server", "coordinator.decided", True),
        ("sqlite", "files.published", True),
    ],
)
def test_what_a_crash_has_left_is_this_versions_to_end(beside: Beside, store: str, point: str, commits: bool) -> None:
    beside.write(41, "one", "two", failpoints=f"{point}=kill")
    left = beside.files()
    for _ in range(2):
        _, said = command(beside.site, "old", "scan")
        assert "Traceback" not in said
        assert beside.files() == left, said
    assert command(beside.site, "old", "list")[0] != 70
    assert beside.files() == left
    beside.recover_new()
    for name in ("one", "two"):
        assert (41 in beside.site.rows()[name]) is commits, said
    new = {"n41/data": "41", "latest/data": "41"}
    assert beside.published() == {"n40/data": "40", "latest/data": "40", **(new if commits else {})}
    assert beside.left() == []


@pytest.mark.parametrize("store", ["sqlite"])
def test_it_refuses_a_file_of_a_driver_that_it_does_not_know(beside: Beside, store: str) -> None:
    beside.write(41, "one", failpoints="coordinator.decided=kill")
    left = beside.files()
    configure(beside.site, "old")
    text = beside.site.conf.read_text().replace("datasources = ", "datasources = exports.properties, ")
    beside.site.conf.write_text(text)
    process = start(beside.site, "old", "", "-m", "recovery", "scan", "--conf", "recovery.properties")
    output, errors = process.communicate(timeout=600)
    assert process.returncode not in (0, 1), output + errors
    assert "exports" in output + errors
    assert beside.files() == left
    beside.recover_new()
    assert beside.published() == {"n40/data": "40", "n41/data": "41", "latest/data": "41"}
    assert 41 in beside.site.rows()["one"]
