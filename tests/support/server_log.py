"""What a PostgreSQL server has written into its log: the statements that it got, and what it made of each name in them.

With `debug_print_parse` the server prints every statement as it has understood it: each function and operator by its
oid, and the type of each argument. So nobody has to list what txpool's statements call.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.support.waiting import until
from txpool.demo.server import EmbeddedPostgres
from txpool.errors import OperationalError

#: The server's collector writes each message whole, however long, as one line of JSON. Backends that write to one pipe
#: by themselves cut each other's messages short.
_SETTINGS: Final = {
    "logging_collector": "on",
    "log_destination": "jsonlog",
    "log_filename": "messages.log",  # the collector puts json in place of log
    "log_rotation_age": "0",
    "log_rotation_size": "0",
    "log_min_messages": "log",
    "debug_pretty_print": "off",
}
#: For each role that is watched.
LOGGED = ("log_statement = 'all'", "debug_print_parse = on", "log_min_duration_statement = -1")

_STATEMENT = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_TOKEN = re.compile(r"[(){}]|\[[^\]]*\]|\"(?:\\.|[^\"])*\"|(?:\\.|[^\s(){}\[\]])+")
#: Conversions that the server has added by itself: see COERCE_IMPLICIT_CAST.
_IMPLICIT = "2"
_BOOLEAN = 16
#: By the kind of a node, which of its fields has its type.
_TYPES = {
    "VAR": "vartype",
    "CONST": "consttype",
    "PARAM": "paramtype",
    "FUNCEXPR": "funcresulttype",
    "OPEXPR": "opresulttype",
    "RELABELTYPE": "resulttype",
    "COERCEVIAIO": "resulttype",
    "ARRAYCOERCEEXPR": "resulttype",
    "CASEEXPR": "casetype",
    "CASE": "casetype",
    "COALESCEEXPR": "coalescetype",
    "COALESCE": "coalescetype",
    "ARRAYEXPR": "array_typeid",
    "ARRAY": "array_typeid",
    "AGGREF": "aggtype",
    "WINDOWFUNC": "wintype",
    "SUBSCRIPTINGREF": "refrestype",
    "SQLVALUEFUNCTION": "type",
    "ROWEXPR": "row_typeid",
    "ROW": "row_typeid",
    "MINMAXEXPR": "minmaxtype",
    "FIELDSELECT": "resulttype",
    "COERCETODOMAIN": "resulttype",
}


class Message(NamedTuple):
    role: str
    application: str
    level: str
    text: str
    detail: str

    @property
    def statement(self) -> str | None:
        """The statement that it shows, as it was sent."""
        found = _STATEMENT.match(self.text)
        return None if found is None or self.level != "LOG" else found[1]


class LoggedPostgres(EmbeddedPostgres):
    """A server whose log `ServerLog` reads. Only roles that `LOGGED` is set for are in it."""

    ready_line = "redirecting log output to logging collector process"

    def __init__(self) -> None:
        super().__init__(settings=_SETTINGS)

    @property
    def log_file(self) -> Path:
        assert self.folder is not None
        return self.folder / "data" / "log" / "messages.json"

    def _launch(self) -> None:
        super()._launch()
        until(self._answers, what="the server does not answer")

    def _answers(self) -> bool:
        """What it says of its start goes to the collector."""
        if not self.running:
            said = self.log_file.read_text(errors="replace").splitlines()
            self._last_lines.extend(said)
            raise OperationalError("\n".join(said))
        try:
            psycopg.connect(self.dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


class ServerLog:
    """The part of a log that is written from now on."""

    def __init__(self, server: LoggedPostgres) -> None:
        self._server = server
        self._start = len(self._lines())

    def messages(self) -> list[Message]:
        return [_message(json.loads(line)) for line in self._lines()[self._start :]]

    def _lines(self) -> list[bytes]:
        """What was logged before this: the collector writes it in the order in which it came."""
        mark = secrets.token_hex(16)
        with closing(psycopg.connect(self._server.dsn("postgres"), autocommit=True)) as session:
            session.execute(f"do $$ begin raise log '{mark}'; end $$".encode())
        lines: list[bytes] = []

        def is_marked() -> bool:
            lines[:] = self._server.log_file.read_bytes().splitlines(keepends=True)
            return any(mark.encode() in line and line.endswith(b"\n") for line in lines)

        until(is_marked, what="the collector has not written the log")
        return lines


def _message(entry: dict[str, Any]) -> Message:
    text = [entry.get(name, "") for name in ("user", "application_name", "error_severity", "message", "detail")]
    return Message(*text)


@dataclass(frozen=True)
class Call:
    """A call of a function, aggregate or operator, with the types of its arguments before any implicit conversion."""

    kind: str  #: function, aggregate or operator
    oid: int
    arguments: tuple[int, ...]
    result: int


def calls(messages: list[Message]) -> set[Call]:
    """What the statements of these messages call."""
    found: set[Call] = set()
    for message in messages:
        if message.detail.startswith(("{QUERY", "({QUERY")):
            for node in _nodes(_read(iter(_TOKEN.findall(message.detail)))):
                found |= set(_calls_of(node))
    return found


class _Node(NamedTuple):
    kind: str
    fields: dict[str, list[Any]]


def _read(tokens: Iterator[str], end: str = "") -> list[Any]:
    found: list[Any] = []
    for token in tokens:
        if token == end:
            return found
        if token == "(":
            found.append(_read(tokens, ")"))
        elif token == "{":
            kind, *rest = _read(tokens, "}")
            fields: dict[str, list[Any]] = {}
            name = ""
            for each in rest:
                if isinstance(each, str) and each.startswith(":"):
                    name = each[1:]
                    fields[name] = []
                else:
                    fields[name].append(each)
            found.append(_Node(kind, fields))
        else:
            found.append(token)
    return found


def _nodes(found: list[Any]) -> Iterator[_Node]:
    for each in found:
        if isinstance(each, _Node):
            yield each
            for values in each.fields.values():
                yield from _nodes(values)
        elif isinstance(each, list):
            yield from _nodes(each)


def _calls_of(node: _Node) -> Iterator[Call]:
    fields = node.fields
    match node.kind:
        case "FUNCEXPR" if fields["funcformat"] != [_IMPLICIT]:
            yield Call("function", _number(fields["funcid"]), _types(fields["args"]), _number(fields["funcresulttype"]))
        case "OPEXPR" | "DISTINCTEXPR" | "NULLIFEXPR" | "SCALARARRAYOPEXPR":
            result = _number(fields.get("opresulttype", [str(_BOOLEAN)]))
            yield Call("operator", _number(fields["opno"]), _types(fields["args"]), result)
        case "ROWCOMPAREEXPR" | "ROWCOMPARE":
            numbers = [int(each) for each in _flat(fields["opnos"]) if each.isdigit()]
            for number, left, right in zip(numbers, _types(fields["largs"]), _types(fields["rargs"]), strict=False):
                yield Call("operator", number, (left, right), _BOOLEAN)
        case "AGGREF":
            arguments = [each.fields["expr"] for each in _nodes_of(fields["args"])]
            yield Call(
                "aggregate",
                _number(fields["aggfnoid"]),
                tuple(_type(each) for (each,) in arguments),
                _number(fields["aggtype"]),
            )


def _flat(found: list[Any]) -> Iterator[str]:
    for each in found:
        if isinstance(each, list):
            yield from _flat(each)
        elif isinstance(each, str):
            yield each


def _nodes_of(values: list[Any]) -> list[_Node]:
    """The nodes of a list that is a field."""
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each for each in flat if isinstance(each, _Node)]


def _types(values: list[Any]) -> tuple[int, ...]:
    return tuple(_type(each) for each in _nodes_of(values))


def _type(node: _Node) -> int:
    """The type of an expression, without the conversions that the server has added; 0 where it is not known."""
    fields = node.fields
    formats = [fields[name] for name in ("funcformat", "relabelformat", "coerceformat") if name in fields]
    if [_IMPLICIT] in formats:
        inner = _nodes_of(fields["args"] if node.kind == "FUNCEXPR" else fields["arg"])
        return _type(inner[0]) if inner else 0
    name = _TYPES.get(node.kind)
    if name is not None:
        return _number(fields[name])
    if node.kind == "SUBLINK" and fields["subLinkType"] == ["4"]:  # an expression
        targets = [each for each in _nodes(fields["subselect"]) if each.kind == "TARGETENTRY"]
        return _type(_nodes_of(targets[0].fields["expr"])[0]) if targets else 0
    if node.kind == "COLLATEEXPR":
        return _type(_nodes_of(fields["arg"])[0])
    if node.kind in ("BOOLEXPR", "NULLTEST", "BOOLEANTEST", "SUBLINK", "SCALARARRAYOPEXPR", "DISTINCTEXPR"):
        return _BOOLEAN
    return 0


def _number(values: list[Any]) -> int:
    (found,) = values
    return int(found)
