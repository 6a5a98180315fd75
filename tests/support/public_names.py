"""Every public name with its signature: `python -m tests.support.public_names` writes them to tests/public_names.txt.

What changes for users so shows as a diff. `tests/unit/test_public_names.py` holds that the file is what the code says.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, ForwardRef

from tests.support.repository import ROOT

FILE = ROOT / "tests/public_names.txt"
#: What docs/reference/python.md names. Of a module without `__all__`, its own functions and classes are public.
MODULES = (
    "recovery",
    "recovery.modules",
    "recovery.orphans",
    "txpool",
    "txpool.django.base",
    "txpool.django.middleware",
    "txpool.engine",
    "txpool.errors",
    "txpool.metrics.opentelemetry",
    "txpool.metrics.prometheus",
    "txpool.resource",
    "txpool.spark",
    "txpool.testing",
    "txpool.tracing",
    "txpool.tracing.opentelemetry",
    "txpool.web.fastapi",
    "txpool.web.wsgi",
)
_OURS = ("txpool", "recovery")


class _Plain(str):
    """An annotation that a signature shows as it stands in the code."""

    def __repr__(self) -> str:
        return str(self).strip("'\"")


def text() -> str:
    """All public names, module by module."""
    lines = ["# Made by: python -m tests.support.public_names"]
    first: dict[Any, str] = {}
    for name in MODULES:
        module = import_module(name)
        lines += ["", name]
        for public in sorted(_public(module)):
            each = getattr(module, public)
            if inspect.isclass(each) and first.setdefault(each, name) != name:
                lines.append(f"    class {public}: see {first[each]}")
            else:
                lines += _described(public, each)
    return "\n".join(lines) + "\n"


def _public(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module.__name__
    ]


def _described(name: str, each: Any) -> Iterator[str]:
    if not (inspect.isclass(each) and each.__module__.startswith(_OURS)):
        yield f"    {name}{_signature(each) if callable(each) and not inspect.isclass(each) else ''}"
        return
    bases = ", ".join(base.__name__ for base in each.__bases__ if base is not object)
    yield f"    class {name}{f'({bases})' if bases else ''}{_signature(each)}"
    if issubclass(each, Enum):
        yield from (f"        {member.name} = {member.value!r}" for member in each)
        return
    members: dict[str, Any] = {}
    for owner in reversed(each.__mro__):
        if owner.__module__.startswith(_OURS):
            members |= vars(owner)
    for member, value in sorted(members.items()):
        if not member.startswith("_"):
            yield f"        {member}{_signature(value)}"


def _signature(each: Any) -> str:
    if isinstance(each, classmethod | staticmethod):
        each = each.__func__
    if not callable(each) or (inspect.isclass(each) and issubclass(each, Enum | BaseException)):
        return ""
    try:
        signature = inspect.signature(each)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(each) and str(signature) == "(*args, **kwargs)":  # a protocol
        return ""
    parameters = [
        parameter.replace(annotation=_plain(parameter.annotation), default=_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    result = signature.empty if inspect.isclass(each) else _plain(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=result))


def _plain(annotation: Any) -> Any:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _default(value: Any) -> Any:
    """A default whose repr is the same in every process."""
    return _Plain("…") if " at 0x" in repr(value) else value


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
