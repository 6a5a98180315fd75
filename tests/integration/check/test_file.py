"""The configuration file itself, and others beside it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.check.place import Place, checked
from txpool.cli import TxpoolExitCode

if TYPE_CHECKING:
    from tests.conftest import PythonWithout

FILES = {
    "a key that is unknown": (b"driver = psycopg\nurl = postgresql://a@b/c\npool.max = 3\n", "did you mean pool.max-"),
    "no database": (b"driver = psycopg\n", "url is missing"),
    "the url of something else": (b"driver = psycopg\nurl = mysql://a@b/c\n", "is no url for psycopg"),
    "a url that libpq does not read": (
        b"driver = psycopg\nurl = postgresql://a@b/c?nosuch=1\n",
        "PostgreSQL does not know",
    ),
    "an option that libpq does not know": (
        b"driver = psycopg\nurl = postgresql://a@127.0.0.1:1/c\ndriver.nosuch = 1\n",
        "nosuch",
    ),
    "a secret that is not there": (
        b"driver = psycopg\nurl = postgresql://a@b/c\npassword = ${env:TXPOOL_TEST_NOT_SET}\n",
        "needs the environment variable TXPOOL_TEST_NOT_SET",
    ),
    "nothing": (b"", "holds no key"),
    "comments alone": (b"# nothing\n", "holds no key"),
    "bytes": (bytes(range(256)), "It is not UTF-8 text"),
    "control characters": (b"a\x00\x1b[31mb = 1\n", "unknown key: the known ones are"),
    "a very long line": (b"x" * 1_000_000, "unknown key: the known ones are"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_wrong(tmp_path: Path, what: str) -> None:
    content, found = FILES[what]
    path = tmp_path / "x.properties"
    path.write_bytes(content)
    answer = checked(path)
    assert answer.code == TxpoolExitCode.CONFIGURATION
    (finding,) = answer.about("file", "wrong")
    assert found in finding["found"]
    assert len(finding["found"]) <= 600


def test_no_file_at_all(tmp_path: Path) -> None:
    assert "Is a directory" in checked(tmp_path).findings[0]["found"]
    assert "No such file" in checked(tmp_path / "nosuch").findings[0]["found"]
    assert checked(tmp_path).code == TxpoolExitCode.CONFIGURATION


def test_an_inline_password_that_others_can_read(place: Place) -> None:
    path = place.file(f"password = {place.server.password}")
    path.chmod(0o644)
    answer = checked(path)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["file"])
    assert "password in it holds a password" not in answer.about("file", "warning")[0]["why"]
    assert answer.about("file", "warning")[0]["do"] == f"chmod 600 {path}, or write ${{env:NAME}}"
    assert "chmod" not in answer.about("file", "warning")[0]["found"]
    assert place.server.password not in str(answer)
    path.chmod(0o602)
    assert answer.bad == checked(path).bad


def test_one_name_for_two_datasources(place: Place) -> None:
    for stem in ("one", "two"):
        place.file("name = orders", name=stem)
    conf = place.write("recovery", "node.name = a\nlog.url = memory:\ndatasources = one.properties, two.properties")
    answer = checked(conf)
    assert answer.code == TxpoolExitCode.CONFIGURATION
    assert "one.properties describes a datasource orders too" in answer.about("file", "wrong")[0]["found"]


def test_a_configuration_says_all_that_is_wrong_with_it(place: Place) -> None:
    place.file(name="one")
    conf = place.write(
        "recovery", "node.name = a\nlog.url = sqlite:///txlog\ndatasources = nosuch.properties, one.properties"
    )
    answer = checked(conf)
    assert answer.bad == ["log", "file"]
    assert answer.about("recovery", "ok")


def test_each_foreign_key_of_a_file_is_a_finding(place: Place) -> None:
    keys = [f"wait{number} = 3" for number in range(3)] + ["maxLifetime = 0", "idleTimeout = 0", "maximumPoolSize = 5"]
    answer = checked(place.file("\n".join(keys)))
    found = [finding["found"] for finding in answer.about("file", "wrong")]
    assert len(found) == 4
    assert [text.rpartition("write ")[2] for text in found if "HikariCP" in text] == [
        "pool.max-lifetime = none",
        "pool.idle-timeout = none",
        "pool.max-size = 5",
    ]


def test_a_password_file_that_others_can_read_is_a_finding_and_no_other_warning(place: Place) -> None:
    secret = place.folder / "secret"
    secret.write_text(place.server.password)
    secret.chmod(0o644)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = checked(place.file("password = ${file:secret}"))
    (finding,) = answer.about("file", "warning")
    assert "which others can read" in finding["found"]
    assert finding["do"] == f"chmod go-rwx {secret}"


def test_a_password_file_that_is_no_text(place: Place) -> None:
    (place.folder / "secret").write_bytes(b"\xff\xfe")
    (finding,) = checked(place.file("password = ${file:secret}")).about("file", "wrong")
    assert finding["found"].endswith("cannot be read (it is not UTF-8 text): save it as UTF-8")


def test_a_driver_that_is_not_installed_names_the_extra(python_without: PythonWithout, tmp_path: Path) -> None:
    path = tmp_path / "x.properties"
    path.write_text("driver = pymysql\nurl = mysql://a@127.0.0.1:1/b\n")
    source = f"""
import sys
from pathlib import Path
from txpool.check import check
(section,) = check(Path({str(path)!r})).sections
print(*(finding.found for finding in section.findings), file=sys.stderr)
"""
    assert "pip install 'txpool[mariadb]'" in python_without("pymysql", source)
