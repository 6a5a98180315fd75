"""Recovery modules of a user's own, which a configuration names."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.modules import Snapshot
from tests.models.recovery import RecoveryWorld, logged, world_after
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError

MODULES = """
import sys

seen = []

class Tickets:
    def run(self, snapshot):
        seen.append(sorted(snapshot.decisions))

class Broken:
    def run(self, snapshot):
        raise RuntimeError("the ticket office is closed")

class Ends:
    def run(self, snapshot):
        sys.exit(3)

def unmade():
    raise RuntimeError("there are no tickets")

def without():
    return object()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a user's own modules."""
    file = tmp_path / "site_modules.py"
    file.write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop("site_modules", None)


def manager(world: RecoveryWorld, *names: str, modules: Any = (), **options: Any) -> RecoveryManager:
    named = ", ".join(f"site_modules:{name}" for name in names) or None
    settings = RecoverySettings.load(None, recovery_modules=named, **options)
    return RecoveryManager(
        settings, log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, modules=modules
    )


@pytest.mark.usefixtures("own")
def test_each_pass_runs_them_after_its_own_ones() -> None:
    world = world_after(logged, "decided")
    recovery = manager(world, "Tickets")
    recovery.scan()
    recovery.scan()
    assert sys.modules["site_modules"].seen == [[world.gtrid], []], "as the pass had read it"
    assert world.outcomes() == {"committed"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Broken", "RuntimeError: the ticket office is closed"),
        ("Ends", r"sys\.exit\(3\)"),
        ("unmade", "RuntimeError: there are no tickets"),
        ("without", "has no attribute 'run'"),
        ("Missing", "has no attribute 'Missing'"),
    ],
)
def test_one_that_fails_is_told_by_its_name_and_holds_up_nobody(name: str, told: str) -> None:
    world = world_after(logged, "decided")
    report = manager(world, name, "Tickets").scan()
    assert report.errors.keys() == {f"module site_modules:{name}"}
    assert re.search(told, report.errors[f"module site_modules:{name}"])
    assert world.outcomes() == {"committed"}
    assert sys.modules["site_modules"].seen == [[world.gtrid]]


def test_one_that_is_not_installed_is_told_until_it_is(own: Path) -> None:
    own.rename(own.with_suffix(".later"))
    world = world_after(logged, "decided")
    recovery = manager(world, "Tickets")
    assert "No module named 'site_modules'" in recovery.scan().errors["module site_modules:Tickets"]
    assert world.outcomes() == {"committed"}
    own.with_suffix(".later").rename(own)
    assert recovery.scan().errors == {}
    assert sys.modules["site_modules"].seen == [[]]


def test_one_that_hangs_is_told_by_its_name_and_not_called_again_meanwhile() -> None:
    go, calls = threading.Event(), []

    class Hangs:
        def run(self, snapshot: Snapshot) -> None:
            calls.append(snapshot)
            go.wait(120)

    world = world_after(logged, "decided")
    recovery = manager(world, modules=[Hangs()], recovery_step_timeout="1s")
    (name,) = recovery.scan().errors
    assert name.endswith("Hangs")
    assert world.outcomes() == {"committed"}
    assert recovery.stuck == [name]
    assert "an earlier question" in recovery.scan().errors[name]
    assert len(calls) == 1
    go.set()


@pytest.mark.parametrize("names", ["no_module", "package.module.Class", "a:b,", "a b:c"])
def test_what_is_no_name_is_an_error_of_configuration(names: str) -> None:
    with pytest.raises(ConfigurationError, match=r"recovery.modules.*package\.module:function"):
        RecoverySettings.load(None, recovery_modules=names)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "line",
    ["recovery.modules = site_modules:Tickets", "recovery.noted = postgresql://db1:5432/x by site_modules:Tickets"],
)
def test_a_file_that_names_code_must_not_be_writable_by_others(tmp_path: Path, line: str) -> None:
    conf, world = tmp_path / "recovery.properties", RecoveryWorld()
    conf.write_text(f"{line}\n")
    for mode, refused in ((0o664, True), (0o644, False)):
        conf.chmod(mode)
        if refused:
            with pytest.raises(ConfigurationError, match="it names code to run"):
                RecoveryManager(conf, log=world.log, datasources=[world.a])
        else:
            RecoveryManager(conf, log=world.log, datasources=[world.a]).scan()
    assert ("site_modules" in sys.modules) is ("modules =" in line)
