"""Filters and scanners that a configuration names: the house's own by a word, a user's class by its dotted path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from recovery.scan.report import describe_error
from txpool.config.ownership import require_owned
from txpool.config.properties import Properties, nearest
from txpool.config.secrets import ValueSource
from txpool.errors import ConfigurationError


def instances(
    values: Properties, key: str, names: Iterable[str], built_in: Mapping[str, Callable[[], Any]], method: str
) -> list[Any]:
    """One object for each of the names that the key gives, in their order; each has the method. ConfigurationError.

    A class is one that Python can import, made without arguments. A file that names one is refused where others can
    write to it or have made it: it would let them run what they like.
    """
    names = dict.fromkeys(names)
    classes = [name for name in names if name not in built_in]
    if classes and values.path is not None and values.entry(key).source is ValueSource.FILE:
        require_owned(values.folder / values.path.name, "it names code to run")
    return [
        built_in[name]() if name in built_in else _user_instance(values, key, name, built_in, method) for name in names
    ]


def _user_instance(values: Properties, key: str, name: str, built_in: Mapping[str, Any], method: str) -> Any:
    module, _, word = name.rpartition(".")
    if not module:
        raise values.error(key, f"names {name}: {nearest(name, built_in)}; a class of yours has a dotted path")
    try:
        instance = getattr(import_module(module), word)()
    except Exception as error:
        raise values.error(key, f"names {name}, which could not be made: {describe_error(error)}") from error
    if not callable(getattr(instance, method, None)):
        raise ConfigurationError(f"{values.entry(key).where}: {key} names {name}, which has no method {method}()")
    return instance
