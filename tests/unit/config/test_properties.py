"""Properties: where values come from, references, typed getters, and a secret that is never seen."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txpool.config.properties import (
    Properties,
    Secret,
    SecurityWarning,
)
from txpool.config.secrets import escaped
from txpool.errors import ConfigurationError

PASSWORD = "hunter2"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "orders.properties"
    path.write_text(text)
    path.chmod(mode)
    return path


def parse(line: str) -> Properties:
    return Properties.parse(line, path="conf/x.properties")


def test_a_file_is_a_mapping_that_knows_its_lines(tmp_path: Path) -> None:
    text = "# a comment\n\nname = orders\nurl = \\\n  postgresql://h/\\\n  db\r\nuser : app\rcr = 1\n"
    path = tmp_path / "x.properties"
    path.write_bytes(text.encode())
    values = Properties.load(path)
    assert dict(values) == {"name": "orders", "url": "postgresql://h/db", "user": "app", "cr": "1"}
    assert [values.entry(key).line for key in values] == [3, 4, 7, 8]
    assert values.entry("user").where == f"{path}:7"
    assert values.path == path
    assert values.folder == tmp_path


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    properties = Properties.load(written(tmp_path, "\ufeffname = orders\n"))
    assert dict(properties) == {"name": "orders"}
    assert properties.text == "name = orders\n"


def test_a_comment_is_blanked_in_the_text_that_travels_and_lines_stay() -> None:
    values = Properties.parse(f"#password = {PASSWORD}\n! old: {PASSWORD}\na = 1\n")
    assert PASSWORD not in values.text
    assert Properties.parse(values.text).entry("a").line == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = 2\na = 3\n", "conf/x.properties:3: a is given twice, first on line 1"),
        ("a = 1\npassword = \\uhunter2\n", "conf/x.properties:2: a \\u is not followed by four hexadecimal digits"),
    ],
)
def test_a_malformed_file_is_an_error_of_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Properties.parse(text, path="conf/x.properties")
    assert message in str(caught.value)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_a_missing_file_is_named_as_given_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        Properties.load("conf/none.properties")
    assert str(caught.value).startswith("conf/none.properties: No such file or directory")
    assert str(tmp_path / "conf/none.properties") in str(caught.value)


def test_a_folder_or_a_binary_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Is a directory"):
        Properties.load(tmp_path)
    binary = tmp_path / "x.properties"
    binary.write_bytes(b"password = hunter2\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
        Properties.load(binary)
    assert caught.value.__context__ is None  # a UnicodeDecodeError holds the bytes


def test_references_resolve_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = Properties.load(
        written(tmp_path, "a = ${env:A_NAME}-${file:sub/a.txt}\nb = $${env:A_NAME} $5 $$\n", mode=0o644)
    )
    monkeypatch.setenv("A_NAME", "one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.txt").write_text("two\n\r\n")
    assert values["a"] == "${env:A_NAME}-${file:sub/a.txt}"
    assert values.string("a") == "one-two\n"
    assert values.string("b") == "${env:A_NAME} $5 $$"
    monkeypatch.setenv("A_NAME", "three")
    assert values.string("a") == "three-two\n"


@given(st.text(alphabet="$ {}:aenv", max_size=30))
def test_escaped_text_comes_out_as_it_went_in(text: str) -> None:
    entry = Secret(escaped(text)).entry
    assert entry.resolve() == text
    assert entry.inline == bool(text.strip("'{}"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${env:TXPOOL_TEST_NO_SUCH}", "needs the environment variable TXPOOL_TEST_NO_SUCH, which is not set"),
        ("${file:no-such.txt}", "conf/no-such.txt, which cannot be read (No such file or directory)"),
        ("${hunter2}", "write ${env:NAME}, ${file:PATH}, or $${"),
        ("${env:hunter2", "write ${env:NAME}, ${file:PATH}, or $${"),
    ],
)
def test_a_reference_that_does_not_resolve_names_file_line_key(value: str, message: str) -> None:
    secret = parse(f"\npassword = {value}").secret("password")
    assert secret is not None
    with pytest.raises(ConfigurationError) as caught:
        secret.reveal()
    assert str(caught.value).startswith("conf/x.properties:2: password ")
    assert message in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_malformed_reference_counts_as_a_password_that_stands_there() -> None:
    assert parse("password = ${hunter2").inline[0].key == "password"
    assert parse("password = ${hunter2}").inline[0].key == "password"


def test_a_password_file_that_is_not_text_chains_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "pw").write_bytes(b"hunter2\xff")
    secret = Properties.load(written(tmp_path, "password = ${file:pw}", mode=0o644)).secret("password")
    assert secret is not None
    with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
        secret.reveal()
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30", 30), ("0.5", 0.5), ("500ms", 0.5), ("2 s", 2), ("10m", 600), ("12h", 43200), ("1e-05", 1e-05)],
)
def test_durations_are_seconds(value: str, seconds: float) -> None:
    assert parse(f"k = {value}").duration("k") == pytest.approx(seconds)


def test_typed_values() -> None:
    values = parse("i = 5\nt = TRUE\nf = off\nn = none\nid = audit.xids\nc = xa\np = a.properties, /b\n")
    assert values.integer("i", min=5) == 5
    assert (values.boolean("t"), values.boolean("f")) == (True, False)
    assert values.duration("n", none=True) is None
    assert values.identifier("id") == "audit.xids"
    assert values.choice("c", ("xa", "cmr")) == "xa"
    assert values.paths("p") == (Path.cwd() / "conf/a.properties", Path("/b"))


def test_an_absent_key_is_none() -> None:
    values = parse("")
    assert (values.integer("k"), values.boolean("k"), values.duration("k")) == (None, None, None)
    assert (values.string("k"), values.secret("k"), values.url("k"), values.paths("k")) == (None, None, None, ())


@pytest.mark.parametrize(
    ("getter", "limits", "value", "right"),
    [
        ("integer", {}, "ten", "write one, such as 10"),
        ("integer", {}, "1_0", "write one, such as 10"),
        ("integer", {"min": 1}, "0", "write 1 or more"),
        ("boolean", {}, "maybe", "neither true nor false"),
        ("duration", {}, "30x", "with ms, s, m or h"),
        ("duration", {}, "none", "with ms, s, m or h"),
        ("duration", {}, "-1", "with ms, s, m or h"),
        ("duration", {"positive": True}, "0ms", "longer than nothing"),
        ("identifier", {}, "xids; drop table x", "such as xids or audit.xids"),
        ("identifier", {}, "a.b.c", "such as xids or audit.xids"),
        ("choice", {"choices": ("xa", "cmr")}, "tcc", "write xa or cmr"),
        ("paths", {}, "a,,b", "commas"),
        ("string", {"pattern": "[a-z]+", "right": "small letters"}, "A", "write small letters"),
    ],
)
def test_a_wrong_value_names_file_line_key_value_and_what_is_right(
    getter: str, limits: dict[str, object], value: str, right: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        getattr(parse(f"\nthe.key = {value}"), getter)("the.key", **limits)
    assert str(caught.value).startswith(f"conf/x.properties:2: the.key = {value!r} ")
    assert right in str(caught.value)


def test_an_unknown_key_names_the_nearest_and_not_its_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(f"pasword = {PASSWORD}").check(["password", "user"])
    assert str(caught.value) == "conf/x.properties:1: unknown key pasword: did you mean password?"
    with pytest.raises(ConfigurationError, match="the known ones are password, user"):
        parse("zzz = 1").check(["password", "user"])
    parse("driver.timeout = 1").check([], "driver.")
    with pytest.raises(ConfigurationError):
        parse("driver. = 1").check([], "driver.")


def test_a_driver_option_is_typed_only_where_nothing_is_lost() -> None:
    values = parse("a = 5\nb = 0.5\nc = true\nd = 007\ne = 1.50\nf = x\ng = ${env:HOME}\n")
    assert [values.plain(key) for key in "abcdef"] == [5, 0.5, True, "007", "1.50", "x"]
    assert isinstance(values.plain("g"), Secret)


def test_a_secret_shows_stars(tmp_path: Path) -> None:
    secret = parse(f"password = {PASSWORD}").secret("password")
    assert secret is not None
    assert secret.reveal() == PASSWORD
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", f"{secret:s}"]
    shown += [repr(secret.entry), repr({"p": secret}), repr(parse(f"password = {PASSWORD}"))]
    assert not [text for text in shown if PASSWORD in text]
    assert shown[:3] == ["***"] * 3
    assert copy.deepcopy({"p": secret})["p"] is secret


def test_secrets_are_equal_by_content(tmp_path: Path) -> None:
    assert Secret(PASSWORD) == parse(f"password = {PASSWORD}").secret("password")
    assert hash(Secret(PASSWORD)) == hash(Secret(PASSWORD))
    assert Secret(PASSWORD) != Secret("other")
    assert Secret(PASSWORD) != PASSWORD
    here = Properties.parse("password = ${file:pw}", folder=tmp_path).secret("password")
    assert here != Properties.parse("password = ${file:pw}", folder=tmp_path / "sub").secret("password")


@pytest.mark.parametrize(
    "text",
    [
        f"password = {PASSWORD}",
        f"password = {PASSWORD}${{env:A}}",
        f"recovery.password = {PASSWORD}",
        f"driver.sslpassword = {PASSWORD}",
        f"url = postgresql://app:{PASSWORD}@h/db",
        f"url = postgresql://app@server:{PASSWORD}@h/db",
        f"url = postgresql://${{env:A}}:x{PASSWORD}@h/db",
        f"url = ${{env:A}}:{PASSWORD}@h/db",
        f"url = postgresql://h/db?user=a&password={PASSWORD}",
        f"driver.dbname = host=h password = '{PASSWORD}' user=u",
    ],
)
def test_a_password_that_stands_in_a_value_is_never_pickled(text: str) -> None:
    values = Properties.parse(text)
    key = next(iter(values))
    assert [entry.key for entry in values.inline] == [key]
    for thing in (values, values.entry(key), values.secret(key)):
        with pytest.raises(ConfigurationError, match="cannot travel") as caught:
            pickle.dumps(thing)
        assert PASSWORD not in str(caught.value)


def test_a_secret_stays_here_whatever_its_key_is_called() -> None:
    with pytest.raises(ConfigurationError, match="cannot travel") as caught:
        pickle.dumps(parse(f"pin = {PASSWORD}").secret("pin"))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "password = ${env:A_PASSWORD}",
        "url = postgresql://app:${env:A_PASSWORD}@h:5432/db?application_name=a%40b",
        "url = postgresql://h:5432/db?application_name=a%40b",
        "url = postgresql://user@h:5432/db",
        "url = ${env:A_URL}",
        "driver.dbname = host=h password='${env:A_PASSWORD}'",
    ],
)
def test_a_reference_pickles_as_the_reference(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PASSWORD", PASSWORD)
    monkeypatch.setenv("A_URL", f"postgresql://app:{PASSWORD}@h/db")
    values = Properties.parse(text)
    assert values.inline == ()
    pickled = pickle.dumps(values)
    assert PASSWORD.encode() not in pickled
    assert pickle.loads(pickled) == values
    secret = values.url_secret("url")
    if secret is not None:
        pickled = pickle.dumps(secret)
        assert PASSWORD.encode() not in pickled
        assert pickle.loads(pickled).reveal() == PASSWORD


@pytest.mark.parametrize(
    "key",
    [
        "password",
        *("driver.aws_secret_access_key", "driver.aws_session_token"),
        *("driver.s3.secret-access-key", "driver.s3.session-token"),
    ],
)
def test_others_who_can_read_a_password_draw_a_warning(key: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"name = a\n{key} = {PASSWORD}\n", mode=0o640)
    with pytest.warns(SecurityWarning) as caught:
        Properties.load(path)
    message = str(caught[0].message)
    assert message.startswith(f"{path}: others can read this file, and {key} in it")
    assert PASSWORD not in message


@pytest.mark.parametrize(
    ("text", "mode"), [(f"password = {PASSWORD}", 0o600), ("password = ${env:A}", 0o644), ("name = a", 0o644)]
)
def test_no_warning_without_a_cause(tmp_path: Path, text: str, mode: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Properties.load(written(tmp_path, text, mode))
    assert caught == []


@pytest.mark.parametrize(
    ("key", "mode", "warned"), [("password", 0o644, 1), ("password", 0o600, 0), ("name", 0o644, 0)]
)
def test_a_file_of_a_secret_that_others_can_read(tmp_path: Path, key: str, mode: int, warned: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(mode)
    values = Properties.parse(f"{key} = ${{file:secret}}", path="conf/x.properties", folder=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert values.entry(key).resolve() == PASSWORD
    assert [warning.category for warning in caught] == [SecurityWarning] * warned
    for warning in caught:
        assert str(warning.message).endswith(f"comes from {secret}, which others can read: chmod go-rwx {secret}")


@pytest.mark.parametrize("value", ["file:///srv/tables", "hdfs://name/tables", "s3://bucket/tables"])
def test_a_url_is_no_path(value: str) -> None:
    values = Properties.parse(f"folder = {value}", path="conf/x.properties")
    with pytest.raises(ConfigurationError, match=r"conf/x.properties:1: folder = .* is a url, .*write /srv/tables"):
        values.directory("folder")
    if value.startswith("s3:"):
        assert values.location("folder") == value
    else:
        with pytest.raises(ConfigurationError, match="is a url of another kind: write s3://bucket/prefix"):
            values.location("folder")
