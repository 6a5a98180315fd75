"""A plain command line means the same, whether typer reads it or `recovery.plain`; and little is imported for it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from recovery import cli
from recovery.plain import command_of

PLAIN = (
    "run",
    "run --conf a.properties",
    "scan --json",
    "list",
    "list --conf=a.properties --json",
    "list --expired --node etl-1",
    "list --node etl-1 --node=etl-2",
    "show txp1:etl-1:k3v9x2m7q4wd:1 --json --conf conf/x=y.properties",
    "show --json txp1:etl-1:k3v9x2m7q4wd:1",
    "commit G --yes --reason because",
    "rollback --yes G",
    "forget --datasource orders --yes",
    "forget a=b",
    "forget",
    "audit --json",
    "suspend --reason disk",
    "resume",
    "init --adopt",
)
#: Read by typer alone, which says what is wrong, or does what is asked.
OTHERS = (
    "",
    "--version",
    "--help",
    "list --help",
    "lst",
    "list --nosuch",
    "list --jso",
    "list G",
    "list --conf",
    "list --conf --json",
    "list --json=true",
    "show",
    "show G H",
    "show -- G",
    "list --node=",
    "list --node -x",
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the commands are called with; they do nothing."""
    called: list[tuple[str, dict[str, Any]]] = []
    for command in (*cli.app.registered_commands, cli.app.registered_callback):
        assert command is not None
        function = command.callback
        assert function is not None

        @functools.wraps(function)
        def record(*_: object, _name: str = function.__name__, **values: object) -> None:
            called.append((_name, values))

        monkeypatch.setattr(command, "callback", record)
    return called


def without_defaults(name: str, values: dict[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {"conf": Path("conf/recovery.properties"), "gtrid": ""}
    return {key: value for key, value in values.items() if value not in (False, "", usual.get(key))}


@pytest.mark.parametrize("line", PLAIN)
def test_both_read_the_same(line: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    plain = command_of(cli.app, line.split())
    assert plain is not None
    plain(args=[], standalone_mode=False)
    found = [(name, without_defaults(name, values)) for name, values in calls]
    calls.clear()
    cli.app(line.split(), standalone_mode=False)
    assert found == [(name, without_defaults(name, values)) for name, values in calls]
    assert len(found) == 2
    assert found[0][0] == "recovery"


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_not_plain_is_left_to_typer(line: str) -> None:
    assert command_of(cli.app, line.split()) is None


@pytest.mark.parametrize("code", [0, 7])
def test_it_ends_with_the_commands_exit_code(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> None:
        raise typer.Exit(code)

    command = next(each for each in cli.app.registered_commands if each.callback is cli.audit)
    monkeypatch.setattr(command, "callback", ends)
    monkeypatch.setattr(command, "name", "audit")
    plain = command_of(cli.app, ["audit"])
    assert plain is not None
    with pytest.raises(SystemExit) as ended:
        plain(args=[])
    assert ended.value.code == code


NEEDLESS = ("asyncio", "http.client", "xml", "urllib.request")


@pytest.mark.parametrize(
    ("does", "needless"),
    [
        ("import txpool", NEEDLESS),
        (
            "import sys; sys.argv[1:] = ['list', '--conf', 'nosuch.properties']; from recovery.cli import main; main()",
            (*NEEDLESS, "http.server", "pydantic", "markdown_it"),
        ),
    ],
)
def test_what_is_not_needed_is_not_imported(does: str, needless: tuple[str, ...], tmp_path: Path) -> None:
    says = f"import atexit, sys; atexit.register(lambda: print(sorted(sys.modules)))\n{does}"
    ended = subprocess.run([sys.executable, "-c", says], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("["), ended.stderr
    assert [name for name in needless if f"'{name}'" in ended.stdout] == []
