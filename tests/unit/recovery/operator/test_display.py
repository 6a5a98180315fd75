"""What people and programs are shown: blocks that fit the terminal, names that stay whole, JSON as the help has it."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from recovery.cli import ExitCode, app
from recovery.operator import display
from recovery.operator.audit import AuditEntry
from recovery.operator.listing import BranchState, InDoubt
from recovery.operator.schema import shape
from recovery.operator.suspension import Suspension
from recovery.scan.modules.expiry import Expired
from recovery.scan.report import ScanReport
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted, world_after
from txpool.errors import ProgrammingError
from txpool.log.base import Heuristic
from txpool.resources.base import BranchOutcome


def heuristic_world() -> RecoveryWorld:
    """Decided to commit; somebody has rolled b back by hand, a does not answer, and a person has tried a rollback."""
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    world.a.silent = True
    world.scan()
    with pytest.raises(ProgrammingError):
        world.recovery.rollback(world.gtrid, "because " * 20)
    return world


def fits(kind: Any, data: Any) -> bool:
    """Whether plain data is what its type says, all the way down."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        return [*data] == names and all(fits(hints[name], data[name]) for name in names)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(fits(each, data) for each in inner)
    if origin in (tuple, Sequence):
        return isinstance(data, list) and all(fits(inner[0], each) for each in data)
    if origin is dict:
        return isinstance(data, dict) and all(fits(inner[1], each) for each in data.values())
    return isinstance(data, int | float if kind is float else kind)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("steps", [logged, marked, pointed, unaccounted])
def test_a_gtrid_stands_whole_on_its_own_line_and_no_text_is_wider_than_the_terminal(
    steps: Any, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    world = world_after(steps, "decided")
    found = world.recovery.in_doubt()
    lines = display.format_short(found[0]).splitlines()
    assert lines[0] == world.gtrid
    assert max(map(len, lines)) <= columns
    assert " ".join(found[0].next.split()) in " ".join(display.format_short(found[0]).split())


def test_one_transaction_is_shown_branch_by_branch_with_all_that_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world = heuristic_world()
    found = world.recovery.show(world.gtrid)
    assert found is not None
    shown = display.format_transaction(found)
    words = " ".join(shown.split())
    assert f"branch {world.gtrid}:0:a:L in a: prepared" in words
    assert f"branch {world.gtrid}:1:b:L in b: ended rolled back" in words
    assert "heuristic 1:b:L in b: decided to commit, ended rolled back" in words
    assert re.search(r"by hand rollback \d{4}-\d\d-\d\d .* by \S+@\S+ \(because .*\): refused: ", words)
    assert "repair the data, then forget" in words
    assert max(map(len, shown.splitlines())) <= 80


def test_a_scan_says_what_it_did_to_which_branch() -> None:
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    text = "\n".join(display.report_texts(world.scan()))
    assert f"{world.gtrid}:0:a:L\n  committed   in a: decided in the log" in text
    assert f"{world.gtrid}\n  heuristic   1:b:L in b: decided to commit, ended rolled back" in text
    assert text.splitlines()[-1] == "1 committed, 1 forgotten, 1 heuristic"


def test_nothing_that_others_have_named_reaches_the_terminal_as_a_command() -> None:
    branch = BranchState("gid", "one", "prepared", "\x1b[2Jmallory", "\x9b31m")
    world = world_after(logged, "decided")
    (found,) = world.recovery.in_doubt()
    found = dataclasses.replace(found, branches=(branch,))
    for text in (
        display.format_short(found),
        display.format_transaction(found),
        display.format_unanswered({"one": "\u202e\x07 is \udce9 down"}),
    ):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "?[2Jmallory" in display.format_short(found)


def test_what_has_expired_and_what_was_done_by_hand_can_be_read() -> None:
    noted = Heuristic("g", "1:b:L", "b", "commit", "rolled back")
    text = display.format_expired([Expired("heuristic", "g", 1e9, (noted,)), Expired("incarnation", "aaaaaaaaaaaa")])
    assert re.match(r"g\n  expired     heuristic, 2001-09-\d\d .*\n  heuristic   1:b:L in b", text)
    assert text.endswith("aaaaaaaaaaaa\n  expired     incarnation")
    assert display.format_audit([AuditEntry(1e9, "ada@host", "suspend", "", "", "done")]).startswith(
        "this node\n  by hand     suspend"
    )


def test_json_is_what_its_types_say() -> None:
    world = heuristic_world()
    held = world.recovery.suspend("pause")
    plain: dict[Any, list[Any]] = {
        ScanReport: [world.scan().as_dict(), world_after(marked, "decided").scan().as_dict()],
        InDoubt: [each.as_dict() for each in (*world.recovery.in_doubt(), world.recovery.show(world.gtrid)) if each],
        AuditEntry: [dataclasses.asdict(entry) for entry in world.recovery.audit_entries()],
        Suspension: [dataclasses.asdict(held)],
    }
    for kind, found in plain.items():
        for data in found:
            assert fits(kind, json.loads(json.dumps(data))), (kind, data)


def test_a_shape_is_told_in_words() -> None:
    assert shape(Heuristic).startswith('{"gtrid": text, "bqual": text,')
    assert shape(list[Expired]).endswith('"noted": number}, ...]}, ...]')
    assert '"age": number or null' in shape(InDoubt)
    assert '"unreachable": {text: text, ...}' in shape(ScanReport)
    assert shape({"resumed": bool}) == '{"resumed": true or false}'


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("scan", ScanReport),
        ("list", list[InDoubt]),
        ("list", list[Expired]),
        ("show", InDoubt),
        ("commit", ScanReport),
        ("rollback", ScanReport),
        ("forget", {"gtrid": str, "forgotten": int}),
        ("audit", list[AuditEntry]),
        ("suspend", Suspension),
        ("resume", {"resumed": bool}),
    ],
)
def test_the_help_of_a_command_has_the_shape_of_its_json(command: str, kind: Any) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert told.exit_code == 0
    assert "".join(shape(kind).split()) in "".join(told.output.split())
    assert "--json" in told.output


def test_the_help_names_every_exit_code() -> None:
    told = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output.split())
    for code in ExitCode:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in told


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_command_in_this_process_leaves_no_handler_to_the_next_test(time: str) -> None:
    """Whose stream would be closed by then."""
    logger = logging.getLogger("txpool")
    left = logger.handlers[:]
    CliRunner().invoke(app, ["list", "--help"])
    assert not any(isinstance(each, logging.StreamHandler) for each in left), time
    assert logger.handlers != left, "it logs to its stderr"
