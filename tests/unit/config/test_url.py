"""Urls: read strictly, so that nobody can mistake what is the password; and what may be one in free text, hidden."""

from __future__ import annotations

import pytest
from javaproperties import escape

from txpool.config.properties import Properties, Secret, redact, redact_url
from txpool.errors import ConfigurationError

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("url", "without", "password"),
    [
        ("postgresql://app:pw@h/db", "postgresql://app@h/db", "pw"),
        ("postgresql://app:p%40w@h/db", "postgresql://app@h/db", "p@w"),
        ("postgresql://app:p%3Fw:;&='\"@h/db", "postgresql://app@h/db", "p?w:;&='\""),
        ("postgresql://:pw@/db", "postgresql://@/db", "pw"),
        ("postgresql://app:@h/db", "postgresql://app@h/db", None),
        ("postgresql://app:pw@[::1]:5432,h2:1/db", "postgresql://app@[::1]:5432,h2:1/db", "pw"),
        ("postgresql://h/db?pass%77ord=pw", "postgresql://h/db", "pw"),
        ("postgresql://h/db?password=pw", "postgresql://h/db", "pw"),
        ("postgresql://h/db?password=pw&sslmode=require", "postgresql://h/db?sslmode=require", "pw"),
        ("postgresql://h/db?user=a&password=pw&sslmode=c", "postgresql://h/db?user=a&sslmode=c", "pw"),
        ("postgresql://app@h1:1,h2:2/db", "postgresql://app@h1:1,h2:2/db", None),
    ],
)
def test_a_url_loses_its_password(url: str, without: str, password: str | None) -> None:
    values = Properties.parse(f"url = {url}")
    secret = values.url_secret("url")
    assert values.url("url") == without
    assert (None if secret is None else secret.reveal()) == password


@pytest.mark.parametrize(
    "url",
    [
        "app:hunter2@x@h/db",
        "app:/hunter2@h/db",
        "app:1?hunter2@h/db",
        "app:1?hunter2=hunter2@h/db",
        "app:1#hunter2@h/db",
        "app:hunter2 x@h/db",
        "app:hunter2%@h/db",
        "app:hunter2%00@h/db",
        "app:hunter2%FF@h/db",
        "app:hunter2\u2028@h/db",
        "app:hunter2/db",
        "a@server:hunter2@h/db",
        "h:hunter2,h:2/db",
        "h/db?password=a&hunter2=b",
        "h/db?password=a=hunter2",
        "h/db?password=hunter2&password=b",
        "app:hunter2@h/db?password=b",
        "h/db?PASSWORD=hunter2",
        "h/db?sslpassword=hunter2",
    ],
)
def test_a_url_that_is_not_clear_is_refused_and_not_shown(url: str) -> None:
    values = Properties.parse(f"url = {escape(f'postgresql://{url}')}")
    for read in (values.url, values.url_secret):
        with pytest.raises(ConfigurationError, match=r"url (has|is|gives|can be read)") as caught:
            read("url")
        assert PASSWORD not in str(caught.value)
        assert caught.value.__context__ is None
    assert values.inline


@pytest.mark.parametrize(
    ("url", "inline"),
    [
        ("${env:A}", False),
        ("${env:A}/orders?sslmode=require", False),
        ("postgresql://${env:A}:${env:B}@${env:C}:${env:D}/${env:E}", False),
        ("postgresql://a@h.${env:C}.org:${env:D}/x${env:E}", False),
        ("postgresql://${env:A}:5432/db?sslmode=${env:B}", False),
        ("sqlite:///${env:A}/x@y:z", False),
        # The references may be a head, such as `app:`, and a tail, such as `@h`.
        ("postgresql://${env:A}hunter2${env:B}/db", True),
        ("postgresql://${env:A}hunter2@h/db", True),
        ("postgresql://app:hunter2${env:B}", True),
        ("postgresql://app:${env:A}2@h", True),
        ("${env:A}hunter2${env:B}", True),
        ("${env:A}:hunter2@h", True),
        ("${env:A}://app:hunter2@h", True),
        ("postgresql://h/db?${env:A}hunter2", True),
        ("postgresql://h/db?sslmode=${env:A}hunter2", True),
        ("postgresql://h/db?password=${env:A}", False),
    ],
)
def test_a_part_of_a_password_between_references_is_one(url: str, inline: bool) -> None:
    assert bool(Properties.parse(f"url = {url}").inline) is inline


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://app:hunter2@h/db", "postgresql://app:***@h/db"),
        ("postgresql://app:hun@/ter2?@h/db", "postgresql://app:***@h/db"),
        ("postgresql://h/db?user=a&password=hunter2&port=1", "postgresql://h/db?user=a&password=***&port=1"),
        ("jdbc:postgresql://h/db?password=hunter2", "jdbc:postgresql://h/db?password=***"),
        ("jdbc:sqlserver://h;user=a;password={hunter;2};port=1", "jdbc:sqlserver://h;user=a;password=***;port=1"),
        ("host=h password=hunter2 dbname=x", "host=h password=*** dbname=x"),
        (r"host=h PASSWORD = 'hun\' ter2' dbname=x", "host=h PASSWORD = *** dbname=x"),
        ('connecting to "postgresql://app:hunter2@h/db" failed', 'connecting to "postgresql://app:***@h/db" failed'),
        ("postgresql://app@h:5432/db", "postgresql://app@h:5432/db"),
        ("at postgresql://[::1]:5432/db, and https://h:80: it", "at postgresql://[::1]:5432/db, and https://h:80: it"),
        ("postgresql://app:hun ter\n2@h/db", "postgresql://app:***@h/db"),
        ("postgresql:/app:hunter2@h/db", "postgresql:/app:***@h/db"),
        ("postgresql://app:hunter2 of", "postgresql://app:***"),
        ("password=hun ter2 host=h", "password=*** host=h"),
        ("write password = ${env:NAME}", "write password = ${env:NAME}"),
        ("postgresql://app:hun@ter%00=@h/db", "postgresql://app:***"),
        ("postgresql:/app:hunter%00=@h/db", "postgresql:/app:***"),
        ("postgresql://app:hun@terpassword=2@h/db", "postgresql://app:***"),
        ("postgresql://h:1/db?password=hun@ter2&port=1", "postgresql://h:***&port=1"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert redact_url(text) == shown


def test_redaction_of_what_secrets_reveal() -> None:
    secrets = [Secret("hunt"), Secret("hunter2@/"), Secret("${env:TXPOOL_TEST_NO_SUCH}"), None, Secret("")]
    assert redact("a hunter2@/ b hunter2%40%2F c hunt", secrets) == "a *** b *** c ***"


@pytest.mark.parametrize("piece", ["x", "}", " ", "://", ":", "@", "%40", "password=", "postgres", "a b&", "://x:"])
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    for text in (piece * 30_000, f"password=x{piece * 30_000}", f"postgresql://a:b{piece * 30_000}"):
        redact_url(text)
        assert Properties.parse(f"driver.options = {escape(text)}").inline or text == piece * 30_000
