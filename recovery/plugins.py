"""Orphan filters and expiry scanners that a configuration names: built-in ones by a word, others by a dotted path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from txpool.config.ownership import require_owned
from txpool.config.properties import Properties, nearest
from txpool.config.secrets import ValueSource, describe_error
from txpool.errors import ConfigurationError


def instances(
    values: Properties, key: str, names: Iterable[str], built_in: Mapping[str, Callable[[], Any]], method: str
) -> list[Any]:
    """One object for each name that the key gives, in that order. Every object has the method.

    A class is imported and called without arguments. A configuration file that names a class is refused if others can
    write to it or have made it: they could run any code through it. Errors: ConfigurationError.
    """
    names = dict.fromkeys(names)
    classes = [name for name in names if name not in built_in]
    if classes and values.path is not None and values.entry(key).source is ValueSource.FILE:
        require_owned(values.folder / values.path.name, "it names code to run")
    return [
        built_in[name]() if name in built_in else _instance_of(values, key, name, built_in, method) for name in names
    ]


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
