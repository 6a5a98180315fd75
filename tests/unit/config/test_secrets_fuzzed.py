"""No part of a secret leaves, whatever carries it: passwords of nasty characters, in every place where one may stand.

`TXPOOL_FUZZ_EXAMPLES` says how many (default 120 each), `TXPOOL_FUZZ_SEED` repeats a run; the seed is printed.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from javaproperties import escape

from txpool.check import check
from txpool.config.properties import Properties, Secret, redact, redact_url
from txpool.config.secrets import describe_error, escaped
from txpool.config.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings
from txpool.datasource import DataSource, find
from txpool.errors import ConfigurationError
from txpool.log import open_log
from txpool.log.sql.server import log_server

SEED = int(os.environ.get("TXPOOL_FUZZ_SEED", random.randrange(2**32)))
EXAMPLES = int(os.environ.get("TXPOOL_FUZZ_EXAMPLES", "120"))
MARKERS = ("Zq7Wm2Xv", "Kj4Pt9Rb", "Vn8Hd3Lc")
# What a parser may stumble over; a reference of the file's own among it.
NASTY = [
    *" \t\n\r\f'\"@@@//??##::%&=;,\\{}[]()$*+<>|`~^!-_.é€\u00a0\u2028\u0085\x7f\U0001f600",
    "://",
    "%40",
    "%2",
    "${",
]
NASTY += ["%00", "%FF", "5432", "5432/", "0?", "\r\n", "$${", "${env:HOME}", "''", "\\'", "h:5432/db?user=u@", "[::1]"]


def _joined(parts: list[str]) -> str:
    return "".join(nasty + marker for nasty, marker in zip(parts, MARKERS, strict=False)) + parts[-1]


_part = st.lists(st.sampled_from(NASTY), max_size=3).map("".join)
passwords = st.lists(_part, min_size=4, max_size=4).map(_joined)
schemes = st.sampled_from(["postgresql://"] * 6 + ["postgres://", "POSTGRESQL://", "postgresql:/", "postgresql:", "//"])
users = st.sampled_from(["app", "app", "", "a%40b", "app@server", "my app", "${env:FUZZ_USER}"])
hosts = st.sampled_from(["127.0.0.1:1", "127.0.0.1:1", "[::1]:1", "127.0.0.1:1,127.0.0.1:2", "", "${env:FUZZ_HOST}"])
queries = st.sampled_from(["", "?", "?sslmode=disable", "?application_name=a@b", "#x", "?x=${env:FUZZ_HOST}"])
names = st.sampled_from(["password", "PASSWORD", "sslpassword", "pass%77ord", "oauth_client_secret", "user&password"])


@st.composite
def urls(draw: st.DrawFn) -> tuple[str, str]:
    """A text that holds a password where a url does, and the password itself."""
    password = draw(passwords)
    written = quote(password, safe="") if draw(st.booleans()) else password
    scheme, user, host, query = draw(schemes), draw(users), draw(hosts), draw(queries)
    form = draw(st.integers(0, 8))
    if form <= 3:
        return f"{scheme}{user}:{written}@{host}/db{query}", password
    name = draw(names)
    if form == 4:
        return f"{scheme}{host}/db?sslmode=disable&{name}={written}", password
    if form == 5:
        return f"jdbc:postgresql://{host}/db?user=app&{name}={written}&ssl=true", password
    if form == 6:
        quoted = "'" + password.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return f"host=127.0.0.1 port=1 user=app {name}={draw(st.sampled_from([quoted, password]))}", password
    if form == 7:
        return f"{scheme}{user}:{written}${{env:FUZZ_TAIL}}/db", password
    return f"${{env:FUZZ_HEAD}}{written}${{env:FUZZ_TAIL}}/db", password


def fuzzed(*strategies: Any) -> Callable[[Callable[..., None]], Any]:
    def decorate(test: Callable[..., None]) -> Any:
        health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
        limits = hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, print_blob=True, suppress_health_check=health
        )
        return limits(hypothesis.seed(SEED)(given(*strategies)(test)))

    return decorate


@pytest.fixture(autouse=True)
def _surroundings(own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"TXPOOL_FUZZ_SEED={SEED}")
    for name, value in {
        "USER": "app",
        "HOST": "127.0.0.1:1",
        "HEAD": "postgresql://app:",
        "TAIL": "@127.0.0.1:1",
    }.items():
        monkeypatch.setenv(f"FUZZ_{name}", value)


class Outside:
    """All that leaves, as text, and where it left."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, str]] = []

    def show(self, where: str, text: object) -> None:
        self._seen.append((where, text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)))

    @contextmanager
    def errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error(where, error)

    def error(self, where: str, error: BaseException | None) -> None:
        """An error with all its chain, suppressed or not."""
        if error is None:
            return
        said = [str(error), *map(str, error.args), *getattr(error, "__notes__", ())]
        said += [repr(value) for value in vars(error).values()]
        said += traceback.format_exception_only(error)
        self.show(f"{where}: {type(error).__name__}", "\n".join(said))
        self.error(f"{where}: cause", error.__cause__)
        self.error(f"{where}: context", error.__context__)

    def thing(self, where: str, thing: Any) -> None:
        """An object's texts, and what pickle makes of it."""
        self.show(where, f"{thing!s} {thing!r} {thing:}")
        with self.errors(f"{where} copied"):
            self.show(f"{where} copied", repr(copy.copy(thing)))
        for protocol in (0, 2, 5):
            with self.errors(f"{where} pickled"):
                self.show(f"{where} pickled", pickle.dumps(thing, protocol))

    def properties(self, where: str, values: Properties) -> None:
        self.thing(f"{where} properties", values)
        for key in values:
            self.thing(f"{where} entry", values.entry(key))
            self.error(f"{where} entry", values.entry(key).error("is wrong"))
            self.error(f"{where} entry", values.entry(key).stays_here())

    def settings(self, where: str, settings: Any) -> None:
        self.thing(where, settings)
        self.properties(where, settings.properties)
        for secret in getattr(settings, "secrets", ()):
            self.thing(f"{where} secret", secret)
        if isinstance(settings, DataSourceSettings):
            with self.errors(f"{where} travel"):
                self.show(f"{where} travel", json.dumps(settings.serialized(), ensure_ascii=False))
            datasource = DataSource.from_settings(settings)
            self.thing(f"{where} datasource", datasource)
            with self.errors(f"{where} connect"), datasource:
                datasource.connect(timeout=1).close()

    def holds(self) -> list[tuple[str, str]]:
        return [(where, text) for where, text in self._seen if any(marker in text for marker in MARKERS)]


@contextmanager
def outside() -> Iterator[Outside]:
    """Fails where a marker is in anything that left within the block, log records included."""
    seen = Outside()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.show("log record", f"{record.getMessage()} {record.args!r} {record.exc_text}")

    handler, root = Handler(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield seen
    finally:
        root.removeHandler(handler)
    assert not seen.holds()


def _connectable(text: str) -> bool:
    """Whether it leads to no server, without a name server being asked."""
    return "127.0.0.1" in text or "[::1]" in text or "FUZZ_" in text


@pytest.mark.costly
@fuzzed(urls())
def test_a_url_of_a_datasource(carrier: tuple[str, str]) -> None:
    url, password = carrier
    file = Path("orders.properties")
    file.write_text(f"driver = psycopg\nurl = {escape(url)}\ndriver.connect_timeout = 1\n", newline="")
    file.chmod(0o600)
    with outside() as seen, pytest.MonkeyPatch.context() as patch:
        with seen.errors("code"):
            seen.settings("code", DataSourceSettings.load(name="orders", driver="psycopg", url=url))
        with seen.errors("file"):
            if "FUZZ_" not in url:  # with references, a password is known as such once the whole has been read
                seen.properties("file", Properties.load(file))
            settings = DataSourceSettings.load(file)
            seen.settings("file", settings)
            if settings.password is not None and "${" not in url and quote(password, safe="") in url:
                assert settings.password.reveal() == password
        if _connectable(url):
            with seen.errors("check"):
                seen.show("check", json.dumps(check(file).as_dict(), ensure_ascii=False))
        with suppress(ValueError):
            patch.setenv("TXPOOL_DS_ORDERS_URL", url)
            with seen.errors("environment"):
                seen.settings("environment", DataSourceSettings.load(name="orders", driver="psycopg"))


@pytest.mark.costly
@fuzzed(urls())
def test_a_url_of_a_log(carrier: tuple[str, str]) -> None:
    url, _ = carrier
    file = Path("txpool.properties")
    file.write_text(f"node.name = a\nlog.url = {escape(url)}\n", newline="")
    file.chmod(0o600)
    with outside() as seen:
        for kind in (CoordinatorSettings, RecoverySettings):
            with seen.errors("code"):
                seen.settings("code", kind.load(node_name="a", log_url=url))
            with seen.errors("file"):
                seen.settings("file", kind.load(file))
        with seen.errors("server"):
            server = log_server(url)
            seen.thing("server", vars(server))
            seen.show("server", server.name)
            if "127.0.0.1:1" in url:
                server.connect()
        if "127.0.0.1:1" in url:
            with seen.errors("open"):
                open_log(url, node="a")
            with seen.errors("check"):
                seen.show("check", json.dumps(check(file).as_dict(), ensure_ascii=False))


@pytest.mark.costly
@fuzzed(
    passwords,
    st.sampled_from(
        ["password", "recovery.password", "driver.sslpassword", "driver.options", "driver.connect_timeout"]
    ),
    st.sampled_from(["{}", "host=h password='{}'", "host=h password={}", "postgresql://app:{}@h/db", "-c x.token={}"]),
)
def test_a_value_of_another_key(password: str, key: str, form: str) -> None:
    if key in ("driver.options", "driver.connect_timeout") and form == "{}":
        form = "${{env:FUZZ_SECRET}}"  # nothing else says that it is one
    value = form.format(password)
    text = "driver = psycopg\nurl = postgresql://app@127.0.0.1:1/db\nrecovery.user = r\n"
    file = Path("orders.properties")
    file.write_text(f"{text}{key} = {escape(value)}\n", newline="")
    file.chmod(0o600)
    with outside() as seen, pytest.MonkeyPatch.context() as patch:
        with suppress(ValueError):
            patch.setenv("FUZZ_SECRET", password)
        with seen.errors("file"):
            settings = DataSourceSettings.load(file)
            seen.settings("file", settings)
        with seen.errors("check"):
            seen.show("check", json.dumps(check(file).as_dict(), ensure_ascii=False))
        option = key.replace(".", "_")
        for given_ in (value, Secret(escaped(value))):
            with seen.errors("code"):
                base: dict[str, Any] = {"name": "a", "driver": "psycopg", "url": "postgresql://app@127.0.0.1:1/db"}
                seen.settings("code", DataSourceSettings.load(**base, recovery_user="r", **{option: given_}))


@fuzzed(urls())
def test_a_url_in_the_place_of_a_path(carrier: tuple[str, str]) -> None:
    url, _ = carrier
    if "${env:FUZZ_TAIL}" in url or url.startswith("//"):
        return  # nothing says that it is a url
    with outside() as seen, pytest.MonkeyPatch.context() as patch:
        for load in (
            find,
            DataSource.from_properties,
            lambda url: DataSource(url, driver="psycopg"),
            DataSourceSettings.load,
            CoordinatorSettings.load,
            RecoverySettings.load,
            lambda url: CoordinatorSettings.load(datasources=url, recovery_nodes=url, node_name=url),
        ):
            with seen.errors("load"):
                load(url)
        with suppress(ValueError):
            patch.setenv("TXPOOL_CONF", url)
            with seen.errors("found"):
                CoordinatorSettings.find()


@fuzzed(urls(), st.sampled_from(["{}", "near {} in line 1", 'connecting to "{}" failed: no', "a=1 {}\nDETAIL: {}"]))
def test_free_text(carrier: tuple[str, str], form: str) -> None:
    text, password = carrier
    if "${env:FUZZ_TAIL}" in text or text.startswith("//"):
        return  # nothing says where a password would be
    with outside() as seen:
        seen.show("redact_url", redact_url(form.format(text, text)))
        seen.show("told", describe_error(ValueError(form.format(text, text))))
        with suppress(ConfigurationError):
            hidden = redact(f"FATAL: {password} {quote(password, safe='')} {password!r}", [Secret(escaped(password))])
            seen.show("redact", hidden)


def test_lines_of_a_password_in_a_file_are_not_told() -> None:
    file = Path("orders.properties")
    for end in ("", "=x", ":x", " x", "@127.0.0.1:1/db"):
        text = f"driver = psycopg\nurl = postgresql://app:{MARKERS[0]}\n{MARKERS[1]}{end}\n{MARKERS[2]}@h/db\n"
        file.write_text(text)
        file.chmod(0o600)
        with outside() as seen:
            seen.show("check", json.dumps(check(file).as_dict()))
            with seen.errors("properties"):
                seen.thing("properties", Properties.load(file))
            with seen.errors("settings"):
                seen.settings("settings", DataSourceSettings.load(file))
