"""Sends the driver's datasources to tasks: their settings, with references unresolved, and their names.

A task finds a datasource under the names and paths by which the driver knows it. References such as ${env:PASSWORD} are
resolved in the process that uses the datasource.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socket import gethostname
from typing import Any

from txpool.config import secrets
from txpool.datasource import Source, find_source, install_received, known, open_file, open_serialized
from txpool.errors import ConfigurationError
from txpool.spark.task.references import references_in
from txpool.tm.manager import get_manager


@dataclass(frozen=True, slots=True)
class TaskDatasources:
    """The driver's datasources as plain data for every task, without secrets."""

    #: The driver's working directory, to which its relative paths refer.
    folder: str
    #: The settings of each datasource by name, as `arrive` takes them.
    settings: Mapping[str, Mapping[str, Any]]
    #: The datasource's name for each name or path that connect() may be given.
    names: Mapping[str, str]
    #: Why the settings of a datasource of the driver cannot be sent, by name.
    unavailable: Mapping[str, str]

    @classmethod
    def pack(cls, explicit: Iterable[Source], implicit: Mapping[str, Source]) -> TaskDatasources:
        """Pack both; `implicit` has names and paths as keys. ConfigurationError if an explicit one cannot be sent."""
        settings: dict[str, Mapping[str, Any]] = {}
        unavailable: dict[str, str] = {}
        for datasource in explicit:
            settings[datasource.name] = datasource.settings.serialized()
        # Of two datasources with the same name, only the one that is registered under the name is sent.
        registered = {key: source for key, source in implicit.items() if implicit[source.name] is source}
        for datasource in registered.values():
            if datasource.name not in settings:
                try:
                    settings[datasource.name] = datasource.settings.serialized()
                except ConfigurationError as error:
                    unavailable[datasource.name] = str(error)
        names = {key: datasource.name for key, datasource in registered.items() if datasource.name in settings}
        return cls(os.getcwd(), settings, names, unavailable)

    def unpack(self) -> tuple[dict[str, Source], dict[str, str]]:
        """Install the datasources in this process. Returns them by name, and why each of the others is unavailable.

        A process that serves several tasks keeps the datasources and their pools.
        """
        secrets.variable_advice = _variable_advice
        datasources: dict[str, Source] = {}
        unavailable = dict(self.unavailable)
        for name, settings in self.settings.items():
            try:
                datasources[name] = open_serialized(settings)
            except ConfigurationError as error:
                unavailable[name] = str(error)
        install_received(
            {key: datasources[name] for key, name in self.names.items() if name in datasources}, self.folder
        )
        return datasources, unavailable


def _variable_advice(name: str) -> str:
    return (
        f"this is a task of Spark's, on {gethostname()}: start the session with spark.executorEnv.{name}, or set it "
        "there before the session starts"
    )


def datasources_for(passed: Iterable[Source], function: object) -> dict[str, Source]:
    """The datasources that tasks may need, under every name and path that connect() may be given for them.

    These are the ones passed, the ones that this process has registered or opened, the ones listed in the coordinator's
    file, and the ones that the function refers to.
    """
    for path in get_manager().settings.datasources:
        open_file(path)
    needed = list(passed)
    for reference in references_in(function):
        if isinstance(reference, Source) or reference.endswith(".properties"):
            with suppress(ConfigurationError):  # a task that uses the file raises the error
                needed.append(find_source(reference))
    datasources = known()
    for datasource in [*datasources.values(), *needed]:
        datasources[datasource.name] = datasource
        file = datasource.settings.properties.path
        if file is not None:
            datasources[str(file)] = datasource
    return datasources
