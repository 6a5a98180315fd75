"""The resource manager over a class of a user's own, which a file names: `driver = package.module:Class`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txpool.config.secrets import hide_in, redact
from txpool.errors import ConfigurationError, described
from txpool.findings.finding import Finding, failure, ok
from txpool.resources.manager import ResourceManager
from txpool.resources.own.branch import ResourceBranch, ResourceRecovery, begin_work, location_of
from txpool.resources.own.resource import Resource, Work

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.base import BegunBy

_made: WeakKeyDictionary[Source, Resource] = WeakKeyDictionary()
_PASSWORD = re.compile(r"//[^/?#]*:[^/?#]*@")


def manager_of(driver: str, named: Any) -> ResourceManager | str:
    """The resource manager of what `driver = package.module:Class` names; a text says why it is none."""
    if isinstance(named, ResourceManager):
        return named
    if isinstance(named, type) and issubclass(named, ResourceManager):
        return named()
    if isinstance(named, type) and issubclass(named, Resource):
        return OwnResources(driver, named)
    return f"driver {driver!r}: that is neither a txpool.resource.Resource nor a ResourceManager: name such a class"


class OwnResources(ResourceManager):
    """The resource manager of one class of resources. Its datasources have no connections: enlist() the resource."""

    instead_of_connecting = (
        "it is a resource of your own, and tx.enlist(txpool.resource.find(…)) lets a transaction work with it"
    )

    def __init__(self, driver: str, resource_class: type[Resource]) -> None:
        self.driver = driver
        self.database = f"{resource_class.__qualname__} resources"
        self.schemes = resource_class.schemes
        self.url_example = resource_class.url_example
        self.url_is_path = resource_class.url_is_path
        self._class = resource_class

    def check(self, settings: DataSourceSettings) -> None:
        if _PASSWORD.search(settings.url):
            raise settings.properties.error("url", "has a password in it: passwords have a key of their own, password")

    def resource(self, settings: DataSourceSettings) -> Resource:
        """The resource that these settings describe: a new object. ConfigurationError if it cannot be made."""
        url = settings.url
        if self.url_is_path:
            scheme = next(each for each in self.schemes if url.startswith(each))
            url = os.path.abspath(settings.properties.entry("url").folder / url.removeprefix(scheme))
        try:
            resource = self._class(settings.name, url, **settings.connect_options())
        except Exception as error:
            hide_in(error, settings.secrets)  # one that connects there may show what it was given
            raise ConfigurationError(
                f"datasource {settings.name}: {self.driver} cannot be made: "
                f"{redact(described(error), settings.secrets)}"
            ) from error
        resource.file = settings.file
        return resource

    def resource_of(self, source: Source) -> Resource:
        """The resource of a datasource: the same object each time."""
        found = _made.get(source)
        return _made.setdefault(source, self.resource(source.settings)) if found is None else found

    def begin(self, source: Source, transaction: BegunBy, timeout: float | None) -> tuple[Work, ResourceBranch]:
        return begin_work(self.resource_of(source), transaction.gtrid)

    def workload(self, source: Source) -> Any:
        try:
            return self.resource_of(source).workload()
        except NotImplementedError:
            return None

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> ResourceRecovery:
        return ResourceRecovery(self.resource(settings))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        resource = self.resource(settings)
        try:
            identity = location_of(resource).identity
            count = len(ResourceRecovery(resource).recover())
        except Exception as error:
            yield failure("connection", f"{settings.name} does not answer: {described(error)}")
            return
        yield ok("connection", f"{settings.name} answers, and is {identity}; {count} branches are prepared there")
