"""The Java object that opens a datasource's connections, made of its settings: a class, and its setters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from txpool.config.other_products import nearest, other_word
from txpool.config.secrets import Secret
from txpool.errors import ConfigurationError, described
from txpool.resources.jdbc.dbapi.errors import Error, call
from txpool.resources.jdbc.jvm import jvm

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

#: The class of XADataSource for urls without one, by what follows `jdbc:`.
KNOWN_CLASSES: Final[Mapping[str, str]] = {
    "h2": "org.h2.jdbcx.JdbcDataSource",
    "postgresql": "org.postgresql.xa.PGXADataSource",
    "mariadb": "org.mariadb.jdbc.MariaDbDataSource",
    "derby": "org.apache.derby.jdbc.EmbeddedXADataSource",
}
_XA: Final = "javax.sql.XADataSource"
_PLAIN: Final = "javax.sql.DataSource"
_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_WHOLE: Final = frozenset({"int", "long", "short", "java.lang.Integer", "java.lang.Long", "java.lang.Short"})
_FLOATS: Final = frozenset({"double", "float", "java.lang.Double", "java.lang.Float"})
_WORDS: Final = frozenset({"boolean", "java.lang.Boolean"})
_TEXTS: Final = frozenset({"java.lang.String", "java.lang.CharSequence"})
_URL_PARTS: Final = re.compile(r"jdbc:derby:(?P<database>[^;]+)(?P<attributes>(?:;[^;=]+=[^;]*)*)")


def class_name(settings: DataSourceSettings) -> str | None:
    """The class of its XADataSource; None if it has only a driver and a url."""
    if settings.xaDataSourceClassName:
        return settings.xaDataSourceClassName
    if settings.jdbc_driver_class:
        return None
    return KNOWN_CLASSES.get(settings.url.removeprefix("jdbc:").partition(":")[0])


class JavaSource:
    """Opens Java connections with the settings of one datasource. Thread-safe."""

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        self._has_url = "url" in settings.properties

    def open(self, timeout: float | None = None) -> tuple[Any, Any]:
        """A new XAConnection, None if there is none, and its java.sql.Connection. Starts the JVM.

        `timeout` is in seconds, for drivers that know one; they count whole seconds.
        """
        settings = self._settings
        classes = jvm.started(settings.jdbc_classpath, jvm.split_options(settings.jvm_options or ""))
        options = settings.connect_options(self._recovery)
        user, password = options.pop("user", None), options.pop("password", None)
        name = class_name(settings)
        if name is None:
            return None, self._by_driver(classes, user, password, options)
        java_class = classes.load(name)
        source = self._instance(java_class, name)
        setters = setters_of(java_class)
        wanted = self._properties(setters, user, password, options)
        unknown = [key for key in wanted if _spelled(key) not in setters]
        if unknown:
            raise ConfigurationError("\n".join(self._unknown(name, setters, key) for key in unknown))
        for key, value in wanted.items():
            self._set(source, name, setters, key, value)
        if timeout is not None and "loginTimeout" not in settings.driver_options:
            with suppress(Error):  # a driver may have none
                call(source.setLoginTimeout, max(1, ceil(timeout)))
        if is_a(java_class, _XA):
            # By setters, and once more as arguments: some drivers look at the one, and some at the other.
            opened = (
                call(source.getXAConnection) if user is None else call(source.getXAConnection, user, password or "")
            )
            return opened, call(opened.getConnection)
        if is_a(java_class, _PLAIN) and settings.mode != "xa":
            return None, call(source.getConnection) if user is None else call(
                source.getConnection, user, password or ""
            )
        kind = _XA if settings.mode == "xa" else f"{_XA} or {_PLAIN}"
        raise ConfigurationError(f"datasource {settings.name}: {name} is no {kind}: name one of its driver's")

    def _instance(self, java_class: Any, name: str) -> Any:
        try:
            return call(java_class)
        except Exception as error:
            raise ConfigurationError(
                f"datasource {self._settings.name}: {name} cannot be made without arguments: {described(error)}"
            ) from error

    def _properties(
        self, setters: Mapping[str, Any], user: str | None, password: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """What is to be set, by the setters' names, secrets revealed."""
        url = self._settings.url if self._has_url else None
        found = dict(options)
        if url is not None and "url" not in setters:
            parts = _URL_PARTS.fullmatch(url)
            if parts is None or "databasename" not in setters:
                raise ConfigurationError(
                    f"datasource {self._settings.name}: its class has no setter setURL: write the setters that it has, "
                    f"such as {', '.join(sorted(each.name for each in setters.values()))}"
                )
            found.setdefault("databaseName", parts["database"])
            if parts["attributes"]:
                found.setdefault("connectionAttributes", parts["attributes"].removeprefix(";"))
        elif url is not None:
            found["url"] = url
        for key, value in (("user", user), ("password", password)):
            if value is not None and key in setters:
                found[key] = value
        return found

    def _set(self, source: Any, name: str, setters: Mapping[str, Setter], key: str, value: Any) -> None:
        setter = setters[_spelled(key)]
        text = value.reveal() if isinstance(value, Secret) else value
        try:
            converted = setter.convert("true" if text is True else "false" if text is False else str(text))
        except (ValueError, KeyError):
            converted = None
        if converted is None:
            # The value is not shown, since a reference may be a secret.
            raise ConfigurationError(
                f"datasource {self._settings.name}: {key} is no {setter.kind}, which {name}.{setter.method} takes: "
                "write one"
            )
        try:
            call(getattr(source, setter.method), converted)
        except Exception as error:
            raise ConfigurationError(
                f"datasource {self._settings.name}: {name}.{setter.method} has refused what {key} says: "
                f"{described(error)}"
            ) from error

    def _unknown(self, name: str, setters: Mapping[str, Setter], key: str) -> str:
        values, other = self._settings.properties, other_word(key)
        written = values.entry(f"driver.{key}").raw if f"driver.{key}" in values else ""
        known = sorted({setter.name for setter in setters.values()})
        hint = nearest(key, known) if other is None else other.advice(written)
        where = values.error(f"driver.{key}", "").args[0].partition(":")[0]
        return f"datasource {self._settings.name} ({where}): {name} has no setter for {key}: {hint}"

    def _by_driver(self, classes: Any, user: str | None, password: str | None, options: dict[str, Any]) -> Any:
        """A connection by the driver alone, which java.sql.DriverManager would not find in jars of its own."""
        settings = self._settings
        if settings.jdbc_driver_class is None:
            raise ConfigurationError(
                f"datasource {settings.name}: no class is known for its url: write xaDataSourceClassName, or for "
                "mode = cmr, last-resource or local jdbc.driver-class"
            )
        if settings.mode == "xa":
            raise ConfigurationError(
                f"datasource {settings.name}: jdbc.driver-class names no XADataSource, and mode = xa needs one: write "
                "xaDataSourceClassName, or mode = cmr"
            )
        driver = self._instance(classes.load(settings.jdbc_driver_class), settings.jdbc_driver_class)
        properties = classes.load("java.util.Properties")()
        for key, value in {**options, "user": user, "password": password}.items():
            if value is not None:
                text = value.reveal() if isinstance(value, Secret) else value
                properties.setProperty(key, str(text).lower() if isinstance(text, bool) else str(text))
        connection = call(driver.connect, settings.url, properties)
        if connection is None:
            raise ConfigurationError(
                f"datasource {settings.name}: {settings.jdbc_driver_class} does not take such a url: correct url"
            )
        return connection


class Setter:
    """A setter of one argument, of a type that a text can be converted to."""

    def __init__(self, method: str, kind: str) -> None:
        self.method = method
        self.kind = {"java.lang.String": "text"}.get(kind, kind.rpartition(".")[2])
        self._type = kind

    @property
    def name(self) -> str:
        """The property, as a file has it: databaseName."""
        word = self.method[3:]
        return word if word[:2].isupper() else f"{word[:1].lower()}{word[1:]}"

    def convert(self, text: str) -> Any:
        """The text as the argument. ValueError or KeyError if it cannot be that."""
        if self._type in _TEXTS:
            return text
        if self._type in _WORDS:
            return _BOOLEANS[text.strip().lower()]
        return float(text) if self._type in _FLOATS else int(text)


def setters_of(java_class: Any) -> dict[str, Setter]:
    """The setters of a Java class that take one text, number or boolean, by the property's name in lower case."""
    found: dict[str, Setter] = {}
    for method in java_class.class_.getMethods():
        name = str(method.getName())
        types = [str(each.getTypeName()) for each in method.getParameterTypes()]
        if not name.startswith("set") or len(name) == 3 or len(types) != 1:
            continue
        (kind,) = types
        if kind not in _TEXTS | _WORDS | _WHOLE | _FLOATS:
            continue
        key = name[3:].lower()
        known = found.get(key)
        if known is None or kind in _TEXTS:
            found[key] = Setter(name, kind)
    return found


def _spelled(key: str) -> str:
    """A key as `setters_of` has it."""
    return key.lower().replace("_", "")


def is_a(java_class: Any, interface: str) -> bool:
    """Whether a Java class implements an interface."""
    waiting, seen = [java_class.class_], set()
    while waiting:
        each = waiting.pop()
        if each is None or str(each.getName()) in seen:
            continue
        seen.add(str(each.getName()))
        if str(each.getName()) == interface:
            return True
        waiting += [each.getSuperclass(), *each.getInterfaces()]
    return False
