"""The rooms of the house: which folder may import which. A floor imports those below it, never one above."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("txpool", "recovery")
#: The commands `python -m`, which belong to no room.
MAINS = {"txpool.__main__", "recovery.__main__"}
#: From the roof to the ground; what shares a line shares a floor, and imports nothing of its neighbours.
FLOORS = (
    ("recovery.cli",),
    ("recovery.service",),
    ("recovery",),
    ("recovery.manager",),
    ("recovery.plugins", "recovery.setup", "recovery.orphans"),
    ("recovery.operator",),
    ("recovery.scan",),
    ("txpool.cli",),
    ("txpool.check", "txpool.demo"),
    ("txpool.spark",),
    ("txpool.spark.source",),
    ("txpool.spark.table",),
    ("txpool.spark.commit", "txpool.spark.types"),
    ("txpool", "txpool.engine", "txpool.web"),
    ("txpool.idempotency",),
    ("txpool.datasource",),
    ("txpool.resources.postgresql", "txpool.resources.sqlite"),
    ("txpool.dbapi",),
    ("txpool.tm",),
    ("txpool.tracing", "txpool.jobs"),
    ("txpool.log",),
    ("txpool.pool",),
    ("txpool.resources",),
    ("txpool.metrics",),
    ("txpool.config",),
    ("txpool.failpoints", "txpool.finishing", "txpool.errors", "txpool.xid"),
)
#: Arrows that run up, with their reason. None is to be added.
UP = {
    ("txpool.log", "txpool.resources.postgresql"): "a log on a server is kept over that driver",
    ("txpool.resources", "txpool.resources.postgresql"): "databases are chosen by the name of their driver",
    ("txpool.resources", "txpool.resources.sqlite"): "databases are chosen by the name of their driver",
    ("txpool.resources", "txpool.dbapi"): "a handle is chosen by the name of its driver",
    ("txpool.tm", "txpool.idempotency"): "a block with a transaction_id records it",
    ("txpool.idempotency", "recovery"): "an earlier run that is in doubt is settled first",
    ("txpool.tracing", "txpool.tm"): "spans are named by the phases of the commit",
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted([*ROOT.glob("txpool/**/*.py"), *ROOT.glob("recovery/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str, path: Path) -> str:
    """A folder, or a file that lies in `txpool/` or `recovery/` itself."""
    parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return module if parent in PACKAGES else parent


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports, where it is executed; not what only types need."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in known else node.module


def arrows() -> dict[tuple[str, str], set[str]]:
    known = modules()
    found = defaultdict(set)
    for module, path in known.items():
        here = room_of(module, path)
        for other in imported(path, known):
            there = room_of(other, known[other])
            if here != there:
                found[here, there].add(f"{module} imports {other}")
    return found


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module, path) for module, path in modules().items()} - MAINS
    assert rooms == {room for floor in FLOORS for room in floor}


def test_no_floor_imports_one_above_it() -> None:
    height = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    up = {
        arrow: why
        for arrow, why in arrows().items()
        if MAINS.isdisjoint(arrow) and height[arrow[1]] <= height[arrow[0]]
    }
    assert set(up) == set(UP), {arrow: sorted(why) for arrow, why in up.items() if arrow not in UP}
