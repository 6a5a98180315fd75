"""What a configuration names: orphan filters and expiry scanners, by a word or a dotted path; modules, by a function.

A configuration file that names code is refused if others can write to it or have made it: they could run any code
through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from recovery.scan.modules.own_module import OwnModule
from txpool.config.other_products import nearest
from txpool.config.ownership import require_owned
from txpool.config.properties import Properties
from txpool.config.secrets import ValueSource, describe_error
from txpool.errors import ConfigurationError


def instances(
    values: Properties, key: str, names: Iterable[str], built_in: Mapping[str, Callable[[], Any]], method: str
) -> list[Any]:
    """One object for each name that the key gives, in that order. Every object has the method.

    A class is imported and called without arguments. Errors: ConfigurationError.
    """
    names = dict.fromkeys(names)
    if any(name not in built_in for name in names):
        require_own_file(values, key)
    return [
        built_in[name]() if name in built_in else _instance_of(values, key, name, built_in, method) for name in names
    ]


def require_own_file(values: Properties, key: str) -> None:
    """ConfigurationError if others could have written the file that gives this key, which names code to run."""
    if values.path is not None and values.entry(key).source is ValueSource.FILE:
        require_owned(values.folder / values.path.name, "it names code to run")


def named_modules(values: Properties, key: str, names: Iterable[str]) -> list[OwnModule]:
    """The modules that the key names as package.module:function. Errors: ConfigurationError.

    None is imported before its first run: one that cannot be is reported then, and holds up nobody.
    """
    names = list(dict.fromkeys(names))
    if names:
        require_own_file(values, key)
    return [OwnModule(name, partial(_new_module, name)) for name in names]


def _new_module(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)()


def _instance_of(values: Properties, key: str, path: str, built_in: Mapping[str, Any], method: str) -> Any:
    module, _, class_name = path.rpartition(".")
    if not module:
        raise values.error(key, f"names {path}, which is no dotted path of a class of yours: {nearest(path, built_in)}")
    try:
        instance = getattr(import_module(module), class_name)()
    except Exception as error:
        raise values.error(key, f"names {path}, which could not be made: {describe_error(error)}") from error
    if not callable(getattr(instance, method, None)):
        raise ConfigurationError(f"{values.entry(key).where}: {key} names {path}, which has no method {method}()")
    return instance
