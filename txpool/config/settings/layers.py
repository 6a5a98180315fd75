"""The layers of a configuration: code takes precedence over the environment, that over the file, that over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from txpool.config import jdbc
from txpool.config.keys import WHOSE, Key
from txpool.config.other_products import advice, nearest, other_word, word_of
from txpool.config.properties import Properties
from txpool.config.secrets import ConfiguredValue, Secret, ValueSource, escaped
from txpool.errors import ConfigurationError

#: The types of an argument's value.
Options = bool | int | float | str | Path | Secret | list[Any] | tuple[Any, ...] | None


def file_of(source: str | Path | Properties | None) -> Properties:
    if source is None:
        return Properties({}, "", Path.cwd())
    return source if isinstance(source, Properties) else Properties.load(source)


def checked(file: Properties, keys: tuple[Key, ...], passed: str | None = None) -> Properties:
    """The file with Narayana's spellings replaced. ConfigurationError for an unknown key, or one given twice."""
    aliases = {key.alias: key.name for key in keys if key.alias}
    if passed:
        file = jdbc.with_setters(file, {*aliases, *(key.name for key in keys)})
    file.check([key.name for key in keys], passed, aliases=aliases, elsewhere=WHOSE)
    entries: dict[str, ConfiguredValue] = {}
    for key in file:
        entry = file.entry(key)
        name = aliases.get(key, key)
        if name in entries:
            first = next(other for other in file if aliases.get(other, other) == name)
            raise entry.error(f"is given as {first} too ({entries[name].where}): leave one out")
        entries[name] = replace(entry, key=name)
    return Properties(entries, file.text, file.folder, file.path)


def defaults(keys: tuple[Key, ...], file: Properties) -> dict[str, ConfiguredValue]:
    where = f"{file.path or 'the arguments'}, by default"
    return {
        key.name: ConfiguredValue(key.name, key.default, where, file.folder, ValueSource.DEFAULT)
        for key in keys
        if key.default is not None
    }


def from_code(
    options: Mapping[str, Options], keys: tuple[Key, ...], passed: str | None = None
) -> dict[str, ConfiguredValue]:
    """The layer of arguments: `driver_x` is the key `driver.x`, and an argument that is None was not given."""
    words = {key.word: key.name for key in keys}
    group = word_of(passed or "")
    entries: dict[str, ConfiguredValue] = {}
    unknown: list[str] = []
    for option, value in options.items():
        word = word_of(option)
        name = words.get(word)
        if name is None and group and word.startswith(group):
            name = f"{passed}{word.removeprefix(group)}"
        if name is None:
            unknown.append(f"unknown argument {option}: {advice(option, str(value), words.values(), argument=True)}")
        if name is None or value is None:
            continue
        where, folder = f"argument {option}", Path.cwd()
        if isinstance(value, Secret):
            entries[name] = replace(value.entry, key=name, where=where, source=ValueSource.CODE)
        elif isinstance(value, bool | int | float | str | Path | list | tuple):
            raw = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            raw = raw.lower() if isinstance(value, bool) else raw
            entries[name] = ConfiguredValue(name, raw, where, folder, ValueSource.CODE)
        else:
            raise ConfigurationError(f"{where}: a {type(value).__name__} cannot be serialized: give text or a number")
    if unknown:
        raise ConfigurationError("\n".join(unknown))
    return entries


def from_environment(prefix: str, keys: tuple[Key, ...], passed: str | None = None) -> dict[str, ConfiguredValue]:
    """The layer of variables: the prefix, then a key in capitals. A variable with a password stays a reference."""
    words = {key.word.upper(): key.name for key in keys}
    groups = tuple({f"{key.name.split('.')[0].upper()}_" for key in keys if "." in key.name})
    group = word_of(passed or "").upper()
    entries: dict[str, ConfiguredValue] = {}
    unknown: list[str] = []
    for variable in sorted(os.environ):
        word = variable.removeprefix(prefix)
        if word == variable:
            continue
        name = words.get(word)
        if name is None and group and word.startswith(group):
            name = f"{passed}{word.removeprefix(group).lower()}"
        if name is not None:
            entry = ConfiguredValue(
                name, escaped(os.environ[variable]), f"the variable {variable}", Path.cwd(), ValueSource.ENVIRONMENT
            )
            entries[name] = replace(entry, raw=f"${{env:{variable}}}") if entry.inline else entry
        elif any(word.endswith(f"_{known}") for known in words):
            continue  # it may belong to another datasource, whose name begins with this name
        elif (other := other_word(word)) is not None and other.key in words.values():
            written = other.translation(
                os.environ[variable], lambda key, value: f"{prefix}{word_of(key).upper()}{value and f'={value}'}"
            )
            unknown.append(f"unknown variable {variable}: write {written}: that is {other.whose}")
        elif word.startswith(groups):
            unknown.append(f"unknown variable {variable}: {nearest(word, words)}")
    if unknown:
        raise ConfigurationError("\n".join(unknown))
    return entries


def password_of(values: Properties, key: str = "password", url: str = "url") -> Secret | None:
    """The password, of its own key or in the url: the one whose layer takes precedence."""
    own, in_url = values.secret(key), values.url_secret(url)
    if own is None or in_url is None:
        return own or in_url
    if own.entry.source == in_url.entry.source:
        raise values.error(key, f"is given twice, here and in the url ({in_url.entry.where}): leave one out")
    return max(own, in_url, key=lambda secret: secret.entry.source)
