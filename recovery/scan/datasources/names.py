"""Recovery knows a datasource by its name: two of one name have to be the same, or one of them is not recovered."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.scan.datasources.datasources import RecoverableDatasource
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError
from txpool.xid import tag_of

Described = RecoverableDatasource | DataSourceSettings


def is_called(name: str, datasource: str) -> bool:
    """Whether a name, or the tag that stands for it in a branch's name, is this datasource's."""
    return name in (datasource, tag_of(datasource))


def by_name(datasources: Iterable[Described]) -> dict[str, Described]:
    """The datasources, and the settings of others, by their names; of several that are the same, the first.

    ConfigurationError if two of one name lead to different places.
    """
    found: dict[str, Described] = {}
    for each in datasources:
        first = found.setdefault(each.name, each)
        places = [_place(one) for one in (first, each)]
        if first is not each and (None in places or places[0] != places[1]):
            urls = " and ".join(str(getattr(one, "url", "one without a url")) for one in (first, each))
            raise ConfigurationError(
                f"two datasources are called {each.name}, {urls}, and recovery knows each by its name: give each "
                "database a name of its own, or leave one out"
            )
    return found


def _place(datasource: object) -> object:
    """Where its database is: its url, and what a JDBC driver's setters say beside it; None if that is not told."""
    settings = getattr(datasource, "settings", datasource)
    if not isinstance(settings, DataSourceSettings):
        return getattr(datasource, "url", None)
    setters = settings.driver_options if settings.driver == "jdbc" else {}
    return settings.url, {key: value for key, value in setters.items() if not isinstance(value, Secret)}
