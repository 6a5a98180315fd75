"""The datasources of the driver, as they travel to tasks: settings as text with references unresolved, and names.

A task finds a datasource under the names that it has on the driver, whose working directory is not the task's. What a
reference means is looked up where the datasource is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from txpool.datasource import DataSource, deserialized, find, install_received, known
from txpool.errors import ConfigurationError
from txpool.spark.commit.references import references_in
from txpool.tm.manager import get_manager


@dataclass(frozen=True, slots=True)
class TaskDatasources:
    """Plain data for every task; holds no secret."""

    #: The driver's working directory, from which its relative paths start.
    folder: str
    #: By name: what `arrive` takes.
    settings: Mapping[str, Mapping[str, Any]]
    #: What connect() is given, and the name of the datasource meant.
    names: Mapping[str, str]
    #: Why a datasource of the driver's could not come along.
    unavailable: Mapping[str, str]

    @classmethod
    def pack(cls, explicit: Iterable[DataSource], implicit: Mapping[str, DataSource]) -> TaskDatasources:
        """`implicit` has each by its name, at least. Errors: ConfigurationError where one passed cannot travel."""
        settings: dict[str, Mapping[str, Any]] = {}
        left_behind: dict[str, str] = {}
        for datasource in explicit:
            settings[datasource.name] = datasource.settings.serialized()
        # Of two that have the same name, it is the one that goes by it.
        meant = {key: datasource for key, datasource in implicit.items() if implicit[datasource.name] is datasource}
        for datasource in meant.values():
            if datasource.name not in settings:
                try:
                    settings[datasource.name] = datasource.settings.serialized()
                except ConfigurationError as error:
                    left_behind[datasource.name] = str(error)
        names = {key: datasource.name for key, datasource in meant.items() if datasource.name in settings}
        return cls(os.getcwd(), settings, names, left_behind)

    def unpack(self) -> tuple[dict[str, DataSource], dict[str, str]]:
        """Make the datasources known in this process; those that are here by name, and why the others are not.

        A process that serves several tasks keeps them, with their pools, from one to the next.
        """
        here: dict[str, DataSource] = {}
        missing = dict(self.unavailable)
        for name, settings in self.settings.items():
            try:
                here[name] = deserialized(settings)
            except ConfigurationError as error:
                missing[name] = str(error)
        install_received({key: here[name] for key, name in self.names.items() if name in here}, self.folder)
        return here, missing


def datasources_for(passed: Iterable[DataSource], function: object) -> dict[str, DataSource]:
    """The datasources that tasks may want, by all that connect() may be given for them.

    They are the ones passed, those that this process has registered or opened, those of the coordinator's file, and
    those that the function mentions.
    """
    for path in get_manager().settings.datasources:
        DataSource.from_properties(path)
    wanted = list(passed)
    for mention in references_in(function):
        if isinstance(mention, DataSource) or mention.endswith(".properties"):
            with suppress(ConfigurationError):  # the task will say what is wrong, if it ever uses it
                wanted.append(find(mention))
    everything = known()
    for datasource in [*everything.values(), *wanted]:
        everything[datasource.name] = datasource
        as_named = datasource.settings.properties.path
        if as_named is not None:
            everything[str(as_named)] = datasource
    return everything
