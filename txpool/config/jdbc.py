"""The keys of JDBC datasources, whose file names a Java class and its setters, as Narayana's files do.

`URL`, `User` and `Password` are setters as well; they are the keys url, user and password. Every other key of a plain
name, such as `databaseName`, becomes `driver.databaseName`: what is passed to the driver.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from txpool.config.properties import Properties
    from txpool.config.secrets import ConfiguredValue

DRIVER: Final = "jdbc"
CLASS_KEY: Final = "xaDataSourceClassName"
#: Keys that only a datasource of this driver has, and that name code to run.
CODE_KEYS: Final = (CLASS_KEY, "jdbc.driver-class", "jdbc.classpath", "jvm.options")
KEYS: Final = (*CODE_KEYS, "h2.accept")
#: The other driver, and relay, that runs in the JVM, and its keys.
JMS: Final = "jms"
JVM_KEYS: Final = ("jdbc.classpath", "jvm.options")
#: Narayana's: how a file is read, and not which class it is for.
_DYNAMIC_CLASS: Final = "dynamicClass"
_READS_THIS_FILE: Final = "PropertyFileDynamicClass"
_SETTER: Final = re.compile(r"[A-Za-z_]\w*")
_URL: Final = "jdbc:"
# A parameter of a JDBC url whose name says that its value is a secret; and SQL in a parameter: PASSWORD 'secret'.
_PARAMETER: Final = re.compile(
    r"(?:(?:password(?!CharacterEncoding|s\s*=)|passwd|passphrase|pwd|secret|token(?!CallbackClass)|credential(?!Type))"
    r"\w*|crypt(?:ion)?_?key|api_?key)(?:\s*=\s*|\s+(?='))(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)
# user:password@ where servers are named. What looks like a port is one, and an @ behind it belongs to the path or to a
# parameter. What does not may be a password with a / in it.
_SERVERS: Final = re.compile(r"jdbc:(?:[\w+.-]+:)+//(?P<servers>[^/?;#]*)")
_USER: Final = re.compile(r"(?:^|,)[^:@,\[]*:(?!\d{1,5}(?:[/?;#,]|\Z)|/|\Z)(?P<value>.+)@", re.DOTALL)
# Oracle's user/password@, and any other url that names no servers and no file.
_FILE: Final = re.compile(r"jdbc:(?:h2|derby|hsqldb|sqlite|duckdb):")
_USER_FIRST: Final = re.compile(
    r"jdbc:\w+:(?:(?:thin|oci8?|kprb):|(?!(?:thin|oci8?|kprb):))[^:/@]*[:/](?P<value>.+)@", re.DOTALL
)


def is_url(text: str) -> bool:
    """Whether a value is a JDBC url."""
    return text.startswith(_URL)


def password_in(url: str) -> bool:
    """Whether a JDBC url may have a password in it; NUL may stand for a reference."""
    return any(match["value"].replace("\0", "") for match in _secrets(url))


def has_secret(url: str) -> bool:
    """Whether a resolved JDBC url has a parameter for a password, or a password behind a user."""
    return any(_secrets(url))


def _secrets(url: str) -> Iterator[re.Match[str]]:
    # A driver decodes the names of parameters, too: pass%77ord is one.
    for text in dict.fromkeys((url, unquote(url))):
        yield from _PARAMETER.finditer(text)
        servers = _SERVERS.match(text)
        if servers is None:
            yield from () if _FILE.match(text) else _USER_FIRST.finditer(text)
            continue
        begin, end = servers.span("servers")
        yield from (found for found in _USER.finditer(text[begin:]) if found.start() <= end - begin)


def with_setters(file: Properties, known: Collection[str]) -> Properties:
    """The file with each setter under `driver.`, if it is a JDBC datasource's; else the file. ConfigurationError."""
    implied = CLASS_KEY in file or _DYNAMIC_CLASS in file
    if not implied and not ("driver" in file and file["driver"].strip() == DRIVER):
        return file
    entries: dict[str, ConfiguredValue] = {}
    for key in file:
        entry = file.entry(key)
        if key == _DYNAMIC_CLASS:
            if entry.raw.endswith(_READS_THIS_FILE):
                continue
            if CLASS_KEY in file:
                raise entry.error(f"is given beside {CLASS_KEY}: leave one out")
            entry = replace(entry, key=CLASS_KEY)
        elif key not in known and _SETTER.fullmatch(key):
            entry = replace(entry, key=f"driver.{key}")
        if entry.key in entries:
            raise entry.error(f"is given twice ({entries[entry.key].where}): leave one out")
        entries[entry.key] = entry
    return type(file)(entries, file.text, file.folder, file.path)
