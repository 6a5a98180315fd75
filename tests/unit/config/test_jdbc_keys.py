"""The keys of datasources over JDBC: Narayana's files, setters, class paths. No JVM is needed to read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError

SEED = """\
# implementation of XADataSource
xaDataSourceClassName=org.h2.jdbcx.JdbcDataSource
# properties which will be invoked on dynamically created XADataSource as setters.
URL=jdbc:h2:mem:test1;DB_CLOSE_DELAY=-1
User=sa
Password=sa
"""
CLASS = "xaDataSourceClassName = org.postgresql.xa.PGXADataSource\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ds.properties"


def load(file: Path, text: str) -> DataSourceSettings:
    file.write_text(text)
    file.chmod(0o600)
    return DataSourceSettings.load(file)


def refused(file: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(file, text)
    assert "hunter2" not in str(raised.value)
    return str(raised.value)


def test_narayanas_own_example(file: Path) -> None:
    settings = load(file, SEED)
    assert (settings.name, settings.driver, settings.mode) == ("ds", "jdbc", "xa")
    assert settings.xaDataSourceClassName == "org.h2.jdbcx.JdbcDataSource"
    assert settings.url == "jdbc:h2:mem:test1;DB_CLOSE_DELAY=-1"
    assert (settings.user, settings.password) == ("sa", Secret("sa"))
    assert DataSourceSettings.from_serialized(settings.serialized()) == settings


@pytest.mark.parametrize(
    "line",
    [
        "dynamicClass = org.h2.jdbcx.JdbcDataSource\n",
        "dynamicClass = com.arjuna.ats.internal.jdbc.drivers.PropertyFileDynamicClass\n"
        "xaDataSourceClassName = org.h2.jdbcx.JdbcDataSource\n",
    ],
)
def test_a_dynamic_class(file: Path, line: str) -> None:
    settings = load(file, f"{line}URL = jdbc:h2:mem:test1\n")
    assert (settings.driver, settings.xaDataSourceClassName) == ("jdbc", "org.h2.jdbcx.JdbcDataSource")


def test_setters_are_options_of_the_driver(file: Path) -> None:
    text = f"{CLASS}databaseName = orders\nportNumber = 5433\nssl = true\nsslPassword = ${{env:SSL}}\nUser = app\n"
    settings = load(file, text)
    options = dict(settings.driver_options)
    assert isinstance(options.pop("sslPassword"), Secret)
    assert options == {"databaseName": "orders", "portNumber": 5433, "ssl": True}
    assert settings.url == "jdbc:org.postgresql.xa.PGXADataSource", "its setters say where the database is"
    in_code = DataSourceSettings.load(
        name="ds", driver="jdbc", xaDataSourceClassName="a.B", driver_databaseName="orders", password="hunter2"
    )
    assert in_code.driver_options == {"databaseName": "orders"}
    assert "hunter2" not in repr(in_code)


def test_a_class_path_is_relative_to_its_file(file: Path) -> None:
    settings = load(file, f"{CLASS}jdbc.classpath = lib/*.jar, /opt/derby.jar:classes\njvm.options = -Xmx64m\n")
    assert settings.jdbc_classpath == (f"{file.parent}/lib/*.jar", "/opt/derby.jar", f"{file.parent}/classes")
    assert settings.jvm_options == "-Xmx64m"


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://h/db?user=app&password=hunter2",
        "jdbc:h2:tcp://h/db;PASSWORD=hunter2",
        "jdbc:oracle:thin:scott/hunter2@h:1521:x",
        "jdbc:postgresql://app:hunter2@h/db",
        "jdbc:postgresql://app:hunter/2@h:5432/db",
        "jdbc:postgresql://app:5432@h/db",
        "jdbc:postgresql://app%3Ahunter2@h/db",
        "jdbc:mysql:loadbalance://h:3306,app:hunter2@h2:3306/db",
        "jdbc:oracle:thin:scott/hunter2@//h:1521/x",
        "jdbc:postgresql:app:hunter2@h/db",
        "jdbc:sqlserver://h;user=app;password={hunter2}",
        "jdbc:mysql://app:#hunter2@h/db",
        "jdbc:mysql://app:,hunter2@h/db",
        # Keys of Derby, HSQLDB and Db2, and H2's SQL.
        "jdbc:derby:db;dataEncryption=true;encryptionKey=hunter2",
        "jdbc:hsqldb:file:x;crypt_key=hunter2;crypt_type=AES",
        "jdbc:db2://h:50000/db:apiKey=hunter2;",
        "jdbc:h2:mem:x;INIT=CREATE USER app PASSWORD 'hunter2'",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(file: Path, url: str) -> None:
    message = refused(file, f"{CLASS}URL = {url}\n")
    assert f"{file}:2: url has a password in it" in message
    os.environ["TXPOOL_TEST_URL"] = url
    try:
        refused(file, f"{CLASS}URL = ${{env:TXPOOL_TEST_URL}}\n")
    finally:
        del os.environ["TXPOOL_TEST_URL"]


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:oracle:thin:@h:1521:x",
        "jdbc:oracle:thin:@//h:1521/x",
        "jdbc:oracle:thin:/@wallet",
        "jdbc:sqlserver://h;databaseName=x",
        # An @ elsewhere than between a user's password and a server.
        "jdbc:h2:file:/srv/etl@home/db",
        "jdbc:h2:~/c:etl@home",
        "jdbc:h2:tcp://h:9092/~/etl@home",
        "jdbc:derby:/srv/etl@home;create=true",
        "jdbc:postgresql://h:5432/etl@home",
        "jdbc:postgresql://h1:5432,[::1]:5432/a:etl@home",
        "jdbc:postgresql://etl@h:5432/db",
        "jdbc:sqlserver://h:1433;user=etl@home",
        # Words about passwords that are none.
        "jdbc:mysql://h/db?passwordCharacterEncoding=UTF-8&disconnectOnExpiredPasswords=true",
        "jdbc:mariadb://h/db?credentialType=AWS-IAM",
        "jdbc:sqlserver://h;accessTokenCallbackClass=com.example.Tokens",
    ],
)
def test_a_url_without_a_password(file: Path, url: str) -> None:
    assert load(file, f"{CLASS}URL = {url}\n").url == url
    os.environ["TXPOOL_TEST_URL"] = url
    try:
        assert load(file, f"{CLASS}URL = ${{env:TXPOOL_TEST_URL}}\n").url == url
    finally:
        del os.environ["TXPOOL_TEST_URL"]


def test_what_is_refused(file: Path) -> None:
    assert "did you mean pool.max-size?" in refused(file, f"{CLASS}URL = jdbc:h2:mem:x\npool.maxsize = 5\n")
    assert "is given beside xaDataSourceClassName" in refused(file, f"{CLASS}dynamicClass = a.B\n")
    assert "is a key of driver = jdbc, and has no use with driver = psycopg: leave it out" in refused(
        file, f"driver = psycopg\n{CLASS}url = postgresql://h/db\n"
    )
    assert "the full name of a Java class" in refused(file, "xaDataSourceClassName = rm -rf\n")
    assert "url is missing" in refused(file, "driver = jdbc\n")
    assert "names no XADataSource" in refused(file, "driver = jdbc\nurl = jdbc:x:y\njdbc.driver-class = a.B\n")
    assert "is no url for jdbc" in refused(file, "driver = jdbc\nurl = orders\n")


@pytest.mark.parametrize(
    "line", [CLASS, "driver = jdbc\njdbc.driver-class = a.B\nmode = local\n", "jdbc.classpath = x\n"]
)
def test_a_file_that_names_code_must_be_safe_from_others(file: Path, line: str) -> None:
    text = f"{line}URL = jdbc:h2:mem:x\n" + ("" if "lass" in line.partition("=")[0] or "driver" in line else CLASS)
    file.write_text(text)
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="it names code to run and is not safe from others"):
        DataSourceSettings.load(file)
