"""A url of MariaDB or MySQL, and a file's driver options, as arguments of the driver's connect()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from txpool.config.settings.login import login_of
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

#: The parameters that a url may have.
PARAMETERS: Final = ("charset", "unix_socket")
#: Those that only a log's url may have, beside connect_timeout: as libpq calls them.
KEEPALIVES: Final = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
TLS_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
TLS_FLAGS: Final = ("ssl_verify_identity", "ssl_disabled")
OF_A_LOG: Final = ("connect_timeout", *KEEPALIVES, *TLS_FILES, *TLS_FLAGS)
PORT: Final = 3306
_WORDS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def _flag(text: str) -> bool:
    return _WORDS[text.strip().lower()]


# The types of the text that a file gives for PyMySQL's arguments. What is not here stays a text.
_KINDS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    **dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), (float, "a number of seconds")),
    **dict.fromkeys(("client_flag", "max_allowed_packet"), (int, "a whole number")),
    **dict.fromkeys(
        ("local_infile", "use_unicode", "binary_prefix", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"),
        (_flag, "true or false"),
    ),
}
#: Options that txpool itself sets, or that have a key of their own.
REFUSED: Final = {
    "autocommit": "leave it out, and set autocommit on a connection that is in no transaction",
    "host": "write it into url",
    "port": "write it into url",
    "database": "write it into url",
    "db": "write it into url",
    "passwd": "write password",
    "cursorclass": "leave it out, and name the class in cursor()",
    "conv": "leave it out",
    "defer_connect": "leave it out",
}


def arguments(settings: DataSourceSettings, *, recovery: bool) -> dict[str, Any]:
    """All arguments of connect(), secrets revealed: never log or keep them. ConfigurationError."""
    url = urlsplit(settings.url)
    given: dict[str, Any] = dict(parse_qsl(url.query))
    for name in given.keys() & OF_A_LOG:
        raise ConfigurationError(
            f"datasource {settings.name}: its url has {name}, which only log.url may have: write driver.{name}, if "
            "the driver knows it"
        )
    if url.hostname:
        given["host"] = unquote(url.hostname)
    given["port"] = url.port or PORT
    if url.username:
        given["user"] = unquote(url.username)
    database = database_in(url)
    if database:
        given["database"] = database
    for name, value in settings.connect_options(recovery).items():
        if name in REFUSED:
            raise ConfigurationError(
                f"datasource {settings.name}: driver.{name} cannot be set in a datasource's settings: {REFUSED[name]}"
            )
        given[name] = _converted(settings, name, value)
    return given


def database_in(url: SplitResult) -> str:
    """The database that a url names; empty if it names none."""
    return unquote(url.path.removeprefix("/"))


def user_of(settings: DataSourceSettings) -> str:
    """The user of the datasource's sessions; empty if none is named."""
    return settings.user or unquote(urlsplit(settings.url).username or "")


def noted_login(settings: DataSourceSettings) -> str:
    """The login for the log's note. Empty over a Unix socket, for which such a url has no place but a parameter."""
    if settings.file:
        return ""
    url = urlsplit(settings.url)
    if "unix_socket" in dict(parse_qsl(url.query)) or "unix_socket" in settings.driver_options:
        return ""
    host, port = unquote(url.hostname or "localhost"), url.port or PORT
    return login_of(settings, "mysql://", user=user_of(settings), host=host, port=port, database=database_in(url))


def _converted(settings: DataSourceSettings, name: str, value: Any) -> Any:
    kind, what = _KINDS.get(name, (None, ""))
    if kind is None or not isinstance(value, str):
        return value
    try:
        return kind(value)
    except (ValueError, KeyError):
        pass
    # The value is not shown, since a reference may be a secret; nor by the error that is chained.
    raise ConfigurationError(f"datasource {settings.name}: driver.{name} is not {what}: write one")
