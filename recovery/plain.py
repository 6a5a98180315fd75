"""Reads plain command lines by itself: typer's own reading imports far more than most commands need.

What is not plain (help, a mistake, an option in a form of its own) is left to typer, which also has the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, CommandInfo, ParamMeta
from typer.utils import get_params_from_function

#: How a value is made from its text.
_MAKERS: Final[Mapping[Any, Callable[[str], Any]]] = {str: str, Path: Path}


def command_of(app: typer.Typer, arguments: Sequence[str]) -> TyperCommand | None:
    """A command that takes no arguments and does what these say; None if typer must read them."""
    first, rest = next(iter(arguments), ""), list(arguments[1:])
    function = next((each.callback for each in app.registered_commands if _name_of(each) == first), None)
    begin = app.registered_callback
    values = None if function is None else _values(get_params_from_function(function), rest)
    if function is None or begin is None or begin.callback is None or values is None:
        return None

    def act(begin: Callable[..., object], command: Callable[..., object]) -> None:
        begin()
        command()

    return TyperCommand(
        first, callback=partial(act, begin.callback, partial(function, **values)), add_help_option=False
    )


def _name_of(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))


class _NotPlain(Exception):
    """The command line is for typer to read."""


def _values(parameters: Mapping[str, ParamMeta], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments by name; None if they are not plain."""
    options: dict[str, ParamMeta] = {}
    positional: list[ParamMeta] = []
    for parameter in parameters.values():
        if isinstance(parameter.default, ArgumentInfo):
            positional.append(parameter)
        else:
            names = parameter.default.param_decls or (f"--{parameter.name.replace('_', '-')}",)
            options.update(dict.fromkeys(names, parameter))
    try:
        found = _read(options, positional, iter(words))
    except _NotPlain:
        return None
    missing = any(each.name not in found and each.default.default in (..., None) for each in positional)
    return None if missing else found


def _read(options: Mapping[str, ParamMeta], positional: Sequence[ParamMeta], words: Iterator[str]) -> dict[str, Any]:
    """The arguments that the words give. Errors: _NotPlain."""
    found: dict[str, Any] = {}
    places = iter(positional)
    for word in words:
        name, equals, text = word.partition("=")
        parameter = options.get(name) if word.startswith("-") else next(places, None)
        if parameter is None:
            raise _NotPlain
        if parameter.annotation is bool:
            if equals or not parameter.default.param_decls:
                raise _NotPlain
            found[parameter.name] = True
        else:
            value = text if equals and name in options else next(words, "") if name in options else word
            found[parameter.name] = _converted(parameter, value)
    return found


def _converted(parameter: ParamMeta, text: str) -> Any:
    if parameter.annotation not in _MAKERS or not text or text.startswith("-"):
        raise _NotPlain
    return _MAKERS[parameter.annotation](text)
