"""A decision log that is missing, another's, a copy, or kept nowhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.check.place import PASSWORD, Place, checked
from txpool.cli import TxpoolExitCode
from txpool.config.settings import RecoverySettings
from txpool.log import open_log
from txpool.setup.stores import initialise


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A coordinator's file whose log is right."""
    path = tmp_path / "txpool.properties"
    path.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\n")
    open_log(f"sqlite:///{tmp_path}/txlog", node="etl-1", create=True).close()
    assert checked(path).bad == []
    return path


def test_a_log_that_is_missing_is_not_made(conf: Path) -> None:
    shutil.rmtree(conf.parent / "txlog")
    answer = checked(conf)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WRONG, ["log"])
    assert "log.db is missing" in answer.about("log")[0]["found"]
    assert not (conf.parent / "txlog").exists()


def test_a_log_that_others_may_enter(conf: Path) -> None:
    (conf.parent / "txlog").chmod(0o755)
    (finding,) = checked(conf).about("permissions")
    assert finding["found"].endswith("has mode 0755")
    assert finding["do"] == f"chmod 700 {conf.parent}/txlog"


def test_a_log_of_another_node(conf: Path) -> None:
    conf.write_text("node.name = etl-2\nlog.url = sqlite:///txlog\n")
    (finding,) = checked(conf).about("log")
    assert "belongs to node 'etl-1', and node.name is 'etl-2'" in finding["found"]


def test_a_log_that_is_a_copy(conf: Path) -> None:
    shutil.copytree(conf.parent / "txlog", conf.parent / "copy")
    (conf.parent / "copy").chmod(0o700)
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///copy\n")
    (finding,) = checked(conf).about("log")
    assert finding["severity"] == "wrong"
    assert "init --adopt" in finding["found"]


def test_a_log_that_would_be_made_again(conf: Path) -> None:
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n")
    answer = checked(conf)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["log"])
    assert answer.about("log", "warning")[0]["do"] == "write log.create = false"


def test_a_log_that_keeps_nothing(conf: Path) -> None:
    conf.write_text("node.name = etl-1\nlog.url = memory:\n")
    assert checked(conf).about("log", "wrong")[0]["found"] == "log.url = memory: is lost with the process"
    conf.write_text("transaction.timeout = 10m\n")
    assert checked(conf).about("log", "warning")[0]["found"] == "log.url is not configured"


def test_a_log_on_a_server(place: Place) -> None:
    text = f"node.name = etl-1\nlog.url = {place.url}\nlog.password = ${{env:{PASSWORD}}}\n"
    conf = place.write("txpool", text)
    answer = checked(conf)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WRONG, ["log"])
    assert "its tables are not on the search path there" in answer.about("log")[0]["found"]

    place.write("orders", "driver = sqlite3\nurl = sqlite:///orders.db\nmode = local")
    initialise(RecoverySettings.load(conf))
    assert checked(conf).bad == []
    place.admin("ALTER TABLE txpool_decisions SET UNLOGGED", f"ALTER ROLE {place.user} SET synchronous_commit = off")
    place.admin("ALTER TABLE txpool_finished OWNER TO txpool", f"GRANT SELECT ON txpool_finished TO {place.user}")
    answer = checked(conf)
    assert answer.bad == ["table", "privileges"]
    for finding in answer.findings:
        if finding["severity"] == "wrong":
            place.heal(finding["do"])
    assert checked(conf).bad == []


def test_a_log_that_others_have_a_hand_in(place: Place) -> None:
    text = f"node.name = etl-1\nlog.url = {place.url}\nlog.password = ${{env:{PASSWORD}}}\n"
    conf = place.write("txpool", text)
    initialise(RecoverySettings.load(conf))
    assert checked(conf).bad == []
    role = f"{place.user}_x"
    place.admin(
        f"CREATE ROLE {role}",
        f"GRANT CONNECT ON DATABASE {place.database} TO public",
        "GRANT INSERT ON txpool_incarnations TO public",
        f"GRANT UPDATE, DELETE ON txpool_decisions TO {role}",
    )
    answer = checked(conf)
    assert sorted(answer.bad) == ["connect", "grants", "grants"]
    (public,) = answer.about("grants", "wrong")
    assert public["found"] == "everybody may INSERT on public.txpool_incarnations"
    (other,) = answer.about("grants", "warning")
    assert other["found"] == f"{role} may DELETE, UPDATE on public.txpool_decisions"
    for finding in answer.findings:
        if finding["topic"] in ("grants", "connect"):
            place.heal(finding["do"])
    assert checked(conf).bad == []

    place.admin(f"ALTER TABLE txpool_decisions OWNER TO {role}", f"GRANT ALL ON txpool_decisions TO {place.user}")
    answer = checked(conf)
    assert answer.bad == ["log"]
    assert f"table public.txpool_decisions belongs to {role}" in answer.about("log")[0]["found"]
    place.heal(answer.about("log")[0]["found"])
    assert checked(conf).bad == []
