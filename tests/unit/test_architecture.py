"""The rooms of the house: which folder may import which. A floor imports those below it, never one above."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.repository import ROOT

PACKAGES = ("txpool", "recovery")
#: The commands `python -m`, which belong to no room.
MAINS = {"txpool.__main__", "recovery.__main__"}
#: From the roof to the ground; what shares a line shares a floor, and imports nothing of its neighbours.
FLOORS = (
    ("recovery.cli",),
    ("recovery.service",),
    ("recovery",),
    ("recovery.on_demand",),
    ("recovery.manager",),
    ("recovery.by_hand",),
    ("recovery.plugins", "recovery.orphans", "recovery.modules", "recovery.plain"),
    ("recovery.operator",),
    ("recovery.scan.modules",),
    ("recovery.scan",),
    ("recovery.scan.datasources",),
    ("txpool.cli",),
    ("txpool.setup",),
    ("txpool.commands",),
    ("txpool.testing",),
    ("txpool.check", "txpool.conformance", "txpool.demo"),
    ("txpool.spark",),
    ("txpool.spark.source",),
    (
        "txpool.spark.table.lake",
        "txpool.spark.table.mysql",
        "txpool.spark.table.postgresql",
        "txpool.spark.table.sqlite",
    ),
    ("txpool.spark.table",),
    ("txpool.spark.task",),
    ("txpool.spark.commit", "txpool.spark.types"),
    ("txpool.django",),
    ("txpool.django.transactions",),
    ("txpool", "txpool.web"),
    ("txpool.lake.rest",),
    ("txpool.lake",),
    ("txpool.lake.journals",),
    ("txpool.engine",),
    ("txpool.aio",),
    ("txpool.control", "txpool.resource", "txpool.waits"),
    ("txpool.files", "txpool.messages", "txpool.outbox"),
    ("txpool.outbox.relays",),
    ("txpool.idempotency",),
    ("txpool.datasource",),
    ("txpool.resources.delta", "txpool.resources.jms", "txpool.resources.s3"),
    ("txpool.resources.jdbc",),
    (
        "txpool.resources.duckdb",
        "txpool.resources.files",
        "txpool.resources.kafka",
        "txpool.resources.mysql",
        "txpool.resources.postgresql",
        "txpool.resources.sqlite",
    ),
    ("txpool.dbapi",),
    ("txpool.tm.demarcation",),
    ("txpool.tm",),
    ("txpool.tm.completion",),
    ("txpool.tm.background", "txpool.tm.rules"),
    ("txpool.tracing", "txpool.jobs"),
    ("txpool.tm.commit",),
    ("txpool.log",),
    ("txpool.pool",),
    ("txpool.pool.numbers",),
    ("txpool.resources.iceberg",),
    ("txpool.resources.branches", "txpool.resources.messages", "txpool.resources.own"),
    ("txpool.resources.marked",),
    ("txpool.resources.driver",),
    ("txpool.resources",),
    ("txpool.metrics",),
    ("txpool.findings",),
    ("txpool.config.settings",),
    ("txpool.config.keys",),
    ("txpool.config",),
    ("txpool.resource_managers",),
    ("txpool.sql",),
    ("txpool.deprecation", "txpool.failpoints", "txpool.errors", "txpool.packed", "txpool.process", "txpool.xid"),
    ("txpool.locks", "txpool.loops"),
)
#: Folders that are one room with those in them: a log's stores, the kit's cases.
WHOLE = ("txpool.conformance", "txpool.log")
#: Files that a folder has at most, without those in folders of its own.
MOST_FILES = 12
#: Modules that a circle of imports has at most, if those for types alone count.
MOST_IN_A_CIRCLE = 5
#: Arrows that run up, with their reason. None is to be added.
UP = {
    ("txpool.tm.demarcation", "txpool.idempotency"): "a block with a transaction_id records it",
    ("txpool.tracing", "txpool.tm"): "a log record has the gtrid of the ambient transaction",
}


_PEP249 = "PEP 249 prescribes it to each driver, and txpool.errors has those of every driver"
#: Names that several classes have, with their reason.
TWICE = {
    "Error": _PEP249,
    "DatabaseError": _PEP249,
    "DataError": _PEP249,
    "IntegrityError": _PEP249,
    "InterfaceError": _PEP249,
    "InternalError": _PEP249,
    "NotSupportedError": _PEP249,
    "OperationalError": _PEP249,
    "ProgrammingError": _PEP249,
    "DatabaseWrapper": "Django looks for it in the module that ENGINE names",
    "TransactionMiddleware": "public, of txpool.web.wsgi and of txpool.web.asgi: an application imports one of them",
}
#: Underscore names of other packages that have no public counterpart.
FOREIGN = {
    "_replace": "a public method of named tuples",
    "_asdict": "a public method of named tuples",
    "_from_testcase": "django: whether a block is TestCase's own, around each test",
    "_getframe": "sys: the caller's frame",
    "_get_running_loop": "asyncio: the running loop, without an error where there is none",
    "_is_owned": "threading.RLock: whether this thread holds it",
    "_active_spark_context": "pyspark: the SparkContext, without making one",
    "_conf": "pyspark: the settings of a SparkContext",
    "_gateway": "pyspark: Py4J's gateway",
    "_gateway_client": "pyspark: Py4J's connections",
    "_jsc": "pyspark: Java's SparkContext",
    "_jdf": "pyspark: Java's DataFrame",
    "_jvm": "pyspark: Java's virtual machine",
    "_hints": "jpype: how arguments are converted to a class; None while another thread makes that",
    "_jsparkSession": "pyspark: Java's SparkSession",
}
#: Private parts of psycopg are in one file, each with the public way that was missing; those of PyMySQL in a folder.
PRIVATE = {
    "txpool/resources/kafka/reader.py",
    "txpool/resources/kafka/requests.py",
    "txpool/resources/postgresql/session/psycopg_private.py",
    "txpool/resources/mysql/pymysql/connection.py",
    "txpool/resources/mysql/pymysql/session.py",
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
    if parent.startswith("txpool.resources."):  # all of one database is one room
        return ".".join(parent.split(".")[:3])
    for whole in WHOLE:
        if parent.startswith(f"{whole}."):
            return whole
    return module if parent in PACKAGES else parent


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def executed(path: Path, *, in_calls: bool, types: bool) -> Iterator[ast.AST]:
    """What importing a file executes; what its functions execute by `in_calls`, what types need by `types`."""
    pending: list[ast.AST] = [parsed(path)]
    while pending:
        node = pending.pop()
        yield node
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
        elif in_calls or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)


def imported(path: Path, known: dict[str, Path], *, in_calls: bool = True, types: bool = False) -> Iterator[str]:
    """The modules of ours that a file imports."""
    for node in executed(path, in_calls=in_calls, types=types):
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


def test_no_imports_of_modules_go_in_a_circle() -> None:
    known = modules()
    TopologicalSorter({module: {*imported(path, known, in_calls=False)} for module, path in known.items()}).prepare()


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The modules that reach each other, by Kosaraju: along the arrows, then against them, the last left first."""
    left: list[str] = []
    seen: set[str] = set()

    def leave(module: str) -> None:
        seen.add(module)
        for other in sorted(graph[module] - seen):
            if other not in seen:
                leave(other)
        left.append(module)

    for module in graph:
        if module not in seen:
            leave(module)
    importers = defaultdict(set)
    for module, others in graph.items():
        for other in others:
            importers[other].add(module)
    found = []
    while left:
        circle, near = set(), {left.pop()} & seen
        while near:
            circle |= near
            near = {each for module in near for each in importers[module]} & seen - circle
        seen -= circle
        found.append(circle)
    return found


def test_imports_for_types_go_in_small_circles() -> None:
    known = modules()
    graph = {module: {*imported(path, known, in_calls=False, types=True)} for module, path in known.items()}
    assert [sorted(circle) for circle in circles(graph) if len(circle) > MOST_IN_A_CIRCLE] == []


def test_a_room_has_at_most_twelve_files() -> None:
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules().values())
    assert {room: size for room, size in sizes.items() if size > MOST_FILES} == {}


def test_a_file_has_at_most_380_lines() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in modules().values()}
    assert {name for name, length in lengths.items() if length > 380} == {"txpool/tm/commit/coordinator.py"}  # tables


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name for path in modules().values() for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, number in names.items() if number > 1} == set(TWICE)


def private_names_read(path: Path) -> Iterator[str]:
    """The underscore names that a file reads of objects whose classes it does not have."""
    own = set()
    read = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if ast.unparse(node.value) in {"self", "cls", "super()"}:
                own.add(node.attr)
            else:
                read.add(node.attr)
    yield from sorted(read - own - set(FOREIGN))


def test_nobody_reads_another_objects_underscore_names() -> None:
    found = {}
    for path in modules().values():
        name = path.relative_to(ROOT).as_posix()
        names = set(private_names_read(path))
        if names and name not in PRIVATE:
            found[name] = names
    assert not found


def test_the_document_of_the_rooms_names_what_is_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:txpool|recovery|tests)/[\w/.]*)`", text))
    assert len(named) > 40
    assert {name for name in named if not (ROOT / name).exists()} == set()
    folders = {room.replace(".", "/") for floor in FLOORS for room in floor} - {"txpool", "txpool/cli"}
    assert {room for room in folders if room not in text} == set(), "each room has its place in the document"
