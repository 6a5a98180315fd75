"""Leaves a piece of the real code out, for the length of a block: a suite that stays green then tests nothing.

The code of a function is exchanged in place, so that every reference to it sees that, and put back.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.crash.explorer.scenarios import Scenario


@dataclass(frozen=True)
class Edit:
    """A piece of text that occurs once in a function (as dedented), a constant or a script, and what replaces it."""

    where: str  #: "module:function", "module:Class.method", or "module:CONSTANT"
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A rule left out, and who must notice."""

    rule: str
    left_out: str
    edits: tuple[Edit, ...] = ()
    #: What the model's own databases and stores leave out.
    flaw: str = ""
    #: Where the explorer looks, and what the violation is called that it must find there.
    scenario: Scenario | None = None
    found: str = "MIX"
    #: A test that runs over the edited code in a process of its own, and fails there.
    test: str = ""
    #: Edits for that test alone.
    real: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.left_out}"


class Stale(Exception):
    """The text that an edit leaves out is not in the code any more: the edit is to be brought up to date."""


@contextmanager
def applied(edits: Iterable[Edit]) -> Iterator[None]:
    """The real code with the edits, for the length of a block; several may touch one function."""
    with ExitStack() as stack:
        sources: dict[str, str] = {}
        for edit in edits:
            stack.enter_context(_edited(edit, sources))
        yield


@contextmanager
def _edited(edit: Edit, sources: dict[str, str]) -> Iterator[None]:
    module_name, _, path = edit.where.partition(":")
    owner: Any = importlib.import_module(module_name)
    names = vars(owner)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    subject = inspect.getattr_static(owner, name)
    if isinstance(subject, FunctionType):
        source = sources.get(edit.where) or textwrap.dedent(inspect.getsource(subject))
        sources[edit.where] = _exchanged(edit, source)
        before = subject.__code__
        subject.__code__ = _compiled(edit.where, sources[edit.where], subject.__name__, names)
        try:
            yield
        finally:
            subject.__code__ = before
    else:
        _put(owner, name, _exchanged(edit, subject))
        try:
            yield
        finally:
            _put(owner, name, subject)


def _put(owner: Any, name: str, value: Any) -> None:
    """Also into a frozen dataclass."""
    (setattr if isinstance(owner, ModuleType | type) else object.__setattr__)(owner, name, value)


def _compiled(where: str, source: str, name: str, names: dict[str, Any]) -> CodeType:
    scope: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<{where}, mutated>", "exec", flags=flags), dict(names), scope)
    code = scope[name].__code__
    assert isinstance(code, CodeType)
    return code


def _exchanged(edit: Edit, text: Any) -> Any:
    texts = text if isinstance(text, tuple) else (text,)
    count = sum(each.count(edit.old) for each in texts)
    if count != 1:
        raise Stale(f"{edit.where} has this {count} times, and not once: {edit.old!r}")
    new = tuple(each.replace(edit.old, edit.new) for each in texts)
    return new if isinstance(text, tuple) else new[0]
