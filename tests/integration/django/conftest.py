"""Django over datasources: two of PostgreSQL, and a marked file of SQLite, as default, two and ledger."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections
from django.utils.functional import empty

from tests.support.recovery_site import Site
from txpool import failpoints
from txpool.datasource import opened
from txpool.tm.manager import configure

#: By the name of a datasource, its alias.
ALIASES = {"one": "default", "two": "two", "ledger": "ledger"}


class Shop:
    """Aliases over datasources' files, with the tables of `shop.models` in each database."""

    def __init__(self, site: Site, names: dict[str, str], readers: dict[str, Callable[[str], Any]]) -> None:
        self.folder = folder = site.folder
        self.rows = site.databases.rows
        self._readers = {alias: readers[name] for name, alias in names.items()}
        databases = {
            alias: {"ENGINE": "txpool.django", "NAME": str(folder / f"{name}.properties"), "ATOMIC_REQUESTS": True}
            for name, alias in names.items()
        }
        for alias in names.values():
            with suppress(AttributeError):
                del connections[alias]
        connections.settings = connections.configure_settings(databases)
        settings.DATABASES = connections.settings
        self.manager: Any = configure(folder / "txpool.properties")
        for alias in connections:
            with connections[alias].schema_editor() as editor:
                for model in self.models:
                    editor.create_model(model)

    @property
    def models(self) -> list[Any]:
        from shop.models import Line, Order

        return [Order, Line]

    def add(self, number: int, *aliases: str) -> None:
        """An order in each alias, by default in all."""
        for alias in aliases or connections:
            self.models[0].objects.using(alias).create(number=number)

    def numbers(self, alias: str = "default") -> list[int]:
        """Those that a bare connection of the driver's sees."""
        return [number for (number,) in self._readers[alias]("select number from shop_order order by number")]

    @property
    def all_numbers(self) -> list[list[int]]:
        return [self.numbers(alias) for alias in connections]

    def close(self) -> None:
        for alias in connections:
            connections[alias].close()
            del connections[alias]
        self.manager.close()
        for datasource in opened():
            datasource.close()


@pytest.fixture
def django_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings for one test: others in this process, as a page of the documents, have theirs."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    before, settings._wrapped = settings._wrapped, empty
    settings.configure(
        DATABASES={},
        INSTALLED_APPS=["shop"],
        ROOT_URLCONF="shop.urls",
        MIDDLEWARE=["txpool.django.middleware.OutcomeMiddleware"],
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of tests",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    yield
    settings._wrapped = before
    with suppress(AttributeError):
        del connections.settings


def readers_of(site: Site) -> dict[str, Callable[[str], Any]]:
    """By datasource, what reads its database."""

    def of_file(query: str) -> Any:
        with closing(sqlite3.connect(site.folder / "ledger.db")) as connection:
            return connection.execute(query).fetchall()

    rows: Any = site.databases.rows
    return {"one": partial(rows, "one"), "two": partial(rows, "two"), "ledger": of_file}


@pytest.fixture
def make_shop(django_settings: None, site: Site) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    if sys.modules.get("shop") is not None and not hasattr(sys.modules["shop"], "__path__"):
        del sys.modules["shop"]  # a page's, whose blocks have run in this process

    def make(names: dict[str, str], **readers: Callable[[str], Any]) -> Shop:
        made.append(Shop(site, names, readers_of(site) | readers))
        return made[-1]

    yield make
    failpoints.disarm()
    for each in made:
        each.close()


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop(ALIASES)
