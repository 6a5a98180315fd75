"""The sessions of a datasource with `driver = jms`: how they are opened, and the idle ones."""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from txpool.config.secrets import without_secrets
from txpool.errors import ConfigurationError, translated
from txpool.resources.base import PrepareLocation
from txpool.resources.deadlines import within_step_timeout
from txpool.resources.jdbc.dbapi.errors import ConnectionLost, call
from txpool.resources.jdbc.dbapi.errors import Error as JavaError
from txpool.resources.jdbc.dialect import JdbcDialect
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.jdbc.jvm.source import setters_of
from txpool.resources.jms.broker import ARTEMIS
from txpool.resources.jms.connection import JmsConnection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from txpool.config.settings import DataSourceSettings
    from txpool.resources.driver.dialect import Dialect
    from txpool.resources.jdbc.jvm.jvm import Classes

_FACTORY: Final = "org.apache.activemq.artemis.jms.client.ActiveMQXAConnectionFactory"
#: No prefetch, or an idle session would keep messages from others; and no reconnection, which would lose the branch.
_SETTINGS: Final = {"consumerWindowSize": 0, "reconnectAttempts": 0, "initialConnectAttempts": 1}
_NEW_GENERATION_AFTER: Final = 86400.0


def connect_to(
    name: str, classes: Classes, url: str, options: Mapping[str, Any], *, branches: bool = True
) -> JmsConnection:
    """A new session, with a user, a password, and setters of the factory's. ConfigurationError for what is none."""
    options = dict(options)
    user, password = options.pop("user", None), options.pop("password", None)
    factory = call(classes.load(_FACTORY), url)
    setters = setters_of(classes.load(_FACTORY))
    for key, value in {**options, **_SETTINGS}.items():
        setter = setters.get(key.lower())
        if setter is None or (key in options and key in _SETTINGS):
            why = "must stay as txpool sets it" if setter else f"is no setter of {_FACTORY}"
            raise ConfigurationError(f"datasource {name}: driver.{key} {why}: leave it out")
        try:
            converted = setter.convert(str(value))
        except (ValueError, KeyError):
            raise ConfigurationError(f"datasource {name}: driver.{key} is no {setter.kind}") from None
        call(getattr(factory, setter.method), converted)
    try:
        opened = call(factory.createXAConnection, user, password)
    except JavaError as error:
        raise ConnectionLost(str(error)) from error  # which is no fault of a message
    try:
        return JmsConnection(name, classes, opened, branches=branches)
    except BaseException:
        call(opened.close)
        raise


class JmsDriver:
    """A broker's sessions. Thread-safe; a session has one user at a time."""

    dialect: Dialect = JdbcDialect()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings, self._recovery = settings, recovery
        self._idle: deque[JmsConnection] = deque()
        self._pid = os.getpid()
        self._generation = ("", 0.0)

    def connect(self, timeout: float | None = None) -> Any:
        """A new session."""
        timeout = within_step_timeout(timeout)
        settings = self._settings
        with translated():
            return without_secrets(lambda: self._connect(timeout), f"datasource {settings.name}", settings.secrets)

    def _connect(self, timeout: float | None) -> JmsConnection:
        settings = self._settings
        classes = jvm.started(settings.jdbc_classpath, jvm.split_options(settings.jvm_options or ""))
        options = settings.connect_options(self._recovery)
        if timeout is not None:
            options.setdefault("callTimeout", max(1, int(timeout * 1000)))
        raw = connect_to(settings.name, classes, settings.url, options)
        try:
            self._identify(raw)
        except BaseException:
            raw.drop()
            raise
        return raw

    def _identify(self, raw: JmsConnection) -> None:
        settings = self._settings
        raw.database = ARTEMIS
        raw.identity = ARTEMIS.identify(raw, writes=not self._recovery).identity
        if not self._recovery:
            generation, since = self._generation
            if monotonic() > since + _NEW_GENERATION_AFTER or not ARTEMIS.has_generation(raw, generation):
                self._generation = generation, _ = ARTEMIS.add_generation(raw), monotonic()
            raw.generation = generation
        raw.location = PrepareLocation(settings.name, raw.identity, "", settings.file)

    def take(self) -> JmsConnection:
        """An idle session that answers, or a new one. It has no timeout of one transaction's: others use it, too."""
        if self._pid != os.getpid():  # the parent's are the parent's
            self._pid, self._idle = os.getpid(), deque()
        while (raw := self._pop()) is not None:
            try:
                if not raw.lost:
                    raw.ping()
                    return raw
            except Exception as error:
                raw.failed = error
            raw.drop()
        found: JmsConnection = self.connect()
        return found

    def give_back(self, raw: JmsConnection) -> None:
        """Keep a session for the next, if it can be used again."""
        if raw.lost or raw.started or raw.xid is not None or len(self._idle) >= self._settings.pool_max_size:
            raw.drop()
        else:
            self._idle.append(raw)

    @contextmanager
    def lent(self) -> Iterator[JmsConnection]:
        """A session outside any branch, for a block."""
        raw = self.take()
        try:
            yield raw
        except BaseException:
            raw.drop()
            raise
        self.give_back(raw)

    def close(self, raw: JmsConnection) -> None:
        raw.drop()

    def close_idle(self) -> None:
        """Close the idle sessions."""
        while self._pid == os.getpid() and (raw := self._pop()) is not None:
            raw.drop()

    def _pop(self) -> JmsConnection | None:
        with suppress(IndexError):  # another thread may take the last one
            return self._idle.pop()
        return None
