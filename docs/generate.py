"""Writes the generated parts of the documents: `python docs/generate.py`. With --check it only names what is old.

A page has what is written by hand, and between two comments what is made of the code::

    <!-- generated: keys datasource -->
    …
    <!-- end of generated -->

`tests/docs/test_generated.py` holds that each part is what the code says.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import typer
from typer.models import ArgumentInfo, OptionInfo

import recovery.cli
import txpool
import txpool.cli
import txpool.spark
from txpool import errors
from txpool.config import keys, other_products
from txpool.config.special_values import Special
from txpool.metrics import catalogue
from txpool.spark.source import plan

_PART = re.compile(r"(<!-- generated: ([\w. -]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
#: What of a class is for users; the rest is for other modules.
_TRANSACTION = (
    "gtrid", "status", "active", "ended", "note", "rollback_cause", "datasources", "unanswered", "commit", "rollback",
    "set_rollback_only", "before_completion", "after_completion", "on_cancel", "enlist",
)  # fmt: skip
_DATASOURCE = (
    "name", "mode", "driver", "url", "from_properties", "connect", "close", "statistics", "resize", "flush",
    "suspend_pool", "resume_pool", "add_listener", "remove_listener",
)  # fmt: skip
_KINDS = {Path: "path", int: "number", float: "number", str: "text"}


def parts() -> dict[str, str]:
    """The text of each generated part, by its name."""
    return {
        "keys datasource": keys.reference(keys.DATASOURCE_KEYS),
        "keys coordinator": keys.reference(keys.COORDINATOR_KEYS),
        "keys recovery": keys.reference(keys.RECOVERY_KEYS),
        "keys of other products": _other_keys(),
        "keys without a counterpart": _keys_without(),
        "commands txpool": _commands("txpool", txpool.cli.app),
        "commands txpool-recovery": _commands("txpool-recovery", recovery.cli.app),
        "exit codes txpool": _exit_codes(txpool.cli.TxpoolExitCode),
        "exit codes txpool-recovery": _exit_codes(recovery.cli.ExitCode),
        "tree of errors": _tree(),
        "errors": _errors(),
        "metrics": catalogue.reference(),
        "names of txpool": _names(txpool),
        "names of txpool.spark": _functions(txpool.spark),
        "options of writing": _options(plan.OPTIONS),
        "members of Transaction": _members(txpool.Transaction, _TRANSACTION),
        "members of DataSource": _members(txpool.DataSource, _DATASOURCE),
        "statuses": _statuses(),
        "pool statistics": _statistics(),
        "pool listener": _listener(),
    }


def generated(text: str, made: dict[str, str]) -> str:
    """A page's text with its generated parts made anew. Errors: KeyError for a part that nobody makes."""
    return _PART.sub(lambda match: f"{match[1]}\n{made[match[2]].strip()}\n\n{match[3]}", text)


def pages() -> list[Path]:
    """The pages that may have generated parts."""
    return sorted((ROOT / "docs").rglob("*.md"))


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(docstring: str) -> str:
    """A docstring's words as Markdown: what it has in backquotes is there already."""
    return " ".join(docstring.split())


# -- keys of others ------------------------------------------------------------------------------------------------


def _other_keys() -> str:
    sections = []
    for product, words in other_products.by_product().items():
        lines = []
        for word, other in words.items():
            named = other_products.UNITS[other.unit] if other.unit else ""
            lines.append(
                (f"`{word}`", f"`{other.key}`", named, _special(other.zero), _special(other.below), other.reason)
            )
        header = ("its key", "here", "its unit", "0 becomes", "less than 0 becomes", "")
        sections.append(f"**{product}**\n\n{_table(header, lines)}")
    return "\n\n".join(sections)


def _special(found: Special | None) -> str:
    if found is None:
        return ""
    if found.also[0]:
        return f"the number, and `{' = '.join(found.also)}`"
    return f"`{found.right}`" if found.right else found.note


def _keys_without() -> str:
    rows = [(other.product, f"`{word}`", other.reason) for word, other in other_products.without().items()]
    return _table(("product", "its key", "here"), sorted(rows))


# -- commands ------------------------------------------------------------------------------------------------------


def _commands(name: str, app: typer.Typer) -> str:
    sections = [f"{_help(app.registered_callback.callback) if app.registered_callback else ''}"]
    for each in app.registered_commands:
        assert each.callback is not None
        sections += _command(f"{name} {each.name or each.callback.__name__}", each.callback, each.epilog or "")
    for group in app.registered_groups:
        assert group.typer_instance is not None
        info = group.typer_instance.info
        sections += [f"### `{name} {group.name}`", _markdown(info.help or ""), _markdown(info.epilog or "")]
        sections += [_commands(f"{name} {group.name}", group.typer_instance)]
    return "\n\n".join(filter(None, sections))


def _command(path: str, callback: Any, epilog: str) -> Iterator[str]:
    named = inspect.signature(callback, eval_str=True).parameters.values()
    given = [(each, _info(each)) for each in named]
    arguments = "".join(f" {_argument(*each)}" for each in given if isinstance(each[1], ArgumentInfo))
    yield f"### `{path}{arguments}`"
    yield _help(callback)
    yield _table(("", "", "default", ""), [_parameter(*each) for each in given]) if given else ""
    yield _markdown(epilog)


def _help(callback: Any) -> str:
    return _code(inspect.getdoc(callback) or "")


def _markdown(epilog: str) -> str:
    """What stands at the end of a command's help, without the escapes of the terminal's markup."""
    text = epilog.replace("\\[", "[")
    described, found, shape = text.partition("JSON: ")
    return f"{described}With `--json`: `{shape}`" if found else text


def _info(parameter: inspect.Parameter) -> Any:
    return next(each for each in parameter.annotation.__metadata__ if isinstance(each, OptionInfo | ArgumentInfo))


def _argument(parameter: inspect.Parameter, info: Any) -> str:
    return info.metavar or parameter.name.upper()


def _parameter(parameter: inspect.Parameter, info: Any) -> tuple[str, ...]:
    kinds = list(get_args(parameter.annotation.__origin__) or (parameter.annotation.__origin__,))
    kind = next(each for each in kinds if each is not type(None))
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    default = "" if parameter.default in (inspect.Parameter.empty, None, False, True, "") else f"`{parameter.default}`"
    if isinstance(info, ArgumentInfo):
        return f"`{_argument(parameter, info)}`", "argument", default, info.help or ""
    # Within Annotated, the first name stands where the default would.
    given = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    names = [name for each in given or [f"--{parameter.name.replace('_', '-')}"] for name in each.split("/")]
    words = " or ".join(kind) if issubclass(kind, Enum) else "" if kind is bool else _KINDS[kind]
    return ", ".join(f"`{name}`" for name in names), words, default, info.help or ""


def _exit_codes(codes: type[IntEnum]) -> str:
    said = dict(re.findall(r"^    (\w+) = \d+(?:  #: (.*))?$", inspect.getsource(codes), re.MULTILINE))
    return _table(("code", "name", "when"), [(str(each.value), each.name, said[each.name]) for each in codes])


# -- Python --------------------------------------------------------------------------------------------------------


def _tree() -> str:
    tree = (errors.__doc__ or "").partition("::\n\n")[2].rpartition("\n\n")[0]
    return f"```text\n{inspect.cleandoc(tree)}\n```"


def _errors() -> str:
    classes = [each for each in vars(errors).values() if inspect.isclass(each) and each.__module__ == errors.__name__]
    rows = [(f"`{each.__name__}`", f"`{each.__bases__[0].__name__}`", _doc(each)) for each in classes]
    return _table(("class", "is a", ""), rows)


def _names(module: ModuleType) -> str:
    rows = []
    for name in module.__all__:
        each = getattr(module, name)
        if inspect.isclass(each) and issubclass(each, BaseException):
            continue
        rows.append((f"`{name}{_signature(each)}`", _said(each)))
    return _table(("name", ""), rows)


def _said(each: Any) -> str:
    """The first paragraph of a docstring; of a number or a text, the value."""
    if isinstance(each, int | str):
        return f"`{each!r}`"
    if inspect.isclass(each) and each.__module__ == "datetime":  # whose docstrings are signatures
        return f"`datetime.{each.__name__}`"
    return _first(each if callable(each) else type(each))


def _functions(module: ModuleType) -> str:
    sections = []
    for name in sorted(module.__all__):
        each = getattr(module, name)
        sections.append(f"### `{name}`\n\n`{name}{_signature(each)}`\n\n{inspect.getdoc(each) or ''}")
    return "\n\n".join(sections)


def _signature(each: Any) -> str:
    if not callable(each) or (inspect.isclass(each) and hasattr(each, "__members__")):
        return ""
    try:
        signature = inspect.signature(each)
    except (TypeError, ValueError):
        return ""
    given = [
        each.replace(annotation=_Plain(each.annotation)) if isinstance(each.annotation, str) else each
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=given, return_annotation=signature.empty))
    return text if " at 0x" not in text else "(…)"


class _Plain(str):
    """An annotation that a signature shows as it stands in the code, with no quotes around it."""

    def __repr__(self) -> str:
        return self.strip('"')


def _doc(each: Any) -> str:
    return _code(inspect.getdoc(each) or "")


def _first(each: Any) -> str:
    return _code((inspect.getdoc(each) or "").partition("\n\n")[0])


def _options(options: dict[str, str]) -> str:
    return _table(("option", ""), [(f"`{name}`", doc) for name, doc in options.items()])


def _members(owner: type, names: Iterable[str]) -> str:
    """Attributes, by the comments beside them or above, and methods and properties, by their docstrings."""
    source = "".join(inspect.getsource(each) for each in owner.__mro__ if each.__module__.startswith("txpool"))
    rows = []
    for name in names:
        member = getattr(owner, name, None)
        if member is None:
            said = re.search(
                rf"(?:^ *#: ([^\n]+)\n)?^ *self\.{name}\b[^\n]*? = [^\n#]*(?:#: ([^\n]+))?$", source, re.MULTILINE
            )
            rows.append((f"`{name}`", "" if said is None else said[1] or said[2]))
        else:
            signature = re.sub(r"\(self(?:, )?", "(", _signature(member))
            rows.append((f"`{name}{signature}`", _doc(member)))
    return _table(("name", ""), rows)


def _statuses() -> str:
    said = dict(re.findall(r"^    (\w+) = [^\n]*?(?:  #: (.*))?$", inspect.getsource(txpool.Status), re.MULTILINE))
    return _table(("name", "value", ""), [(f"`{each.name}`", each.value, said[each.name]) for each in txpool.Status])


def _statistics() -> str:
    source = inspect.getsource(txpool.PoolStatistics)
    rows = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return _table(("field", ""), [(f"`{name}`", doc) for name, doc in rows])


def _listener() -> str:
    methods = inspect.getmembers(txpool.PoolListener, inspect.isfunction)
    rows = [(f"`{name}{_signature(method)}`".replace("(self, ", "("), _doc(method)) for name, method in methods]
    return _table(("method", "is called when"), rows)


def main() -> int:
    """Write every page whose generated parts are out of date, or with --check name them."""
    made = parts()
    old = [page for page in pages() if generated(page.read_text(), made) != page.read_text()]
    for page in old:
        if "--check" not in sys.argv:
            page.write_text(generated(page.read_text(), made))
        print(page.relative_to(ROOT))
    return int("--check" in sys.argv and bool(old))


if __name__ == "__main__":
    sys.exit(main())
