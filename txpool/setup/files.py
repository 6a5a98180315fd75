"""The configuration files that `txpool init` writes: a coordinator's, recovery's, and one for each datasource.

All are written, or none: a file that exists is never changed. A password never stands in a file that others may read.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from txpool.config import jdbc
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.config.sqlalchemy_url import sqlalchemy_advice
from txpool.config.url import UrlError, parse, path_scheme
from txpool.errors import ConfigurationError
from txpool.resource_managers import RegisteredManager, find_resource_manager, known, of_url
from txpool.resources.jdbc.jvm.source import KNOWN_CLASSES

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_RESERVED = frozenset({"txpool", "recovery", "log"})
_JDBC = "jdbc:"
_BACKSLASH = "\\"
_NOT_IN_NODE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class NewDataSource:
    """A datasource to write a file for. `password` is its password, or None if it needs none, or has a reference."""

    name: str
    url: str
    mode: str = ""
    password: str | None = None
    #: Its user, of a JDBC url; in any other, the url has it.
    user: str = ""

    @classmethod
    def parse(cls, text: str) -> NewDataSource:
        """Of `name=url`; a password in the url is taken out of it. ConfigurationError, which shows no password."""
        name, separator, url = text.partition("=")
        if not separator or not _NAME.fullmatch(name) or name in _RESERVED:
            raise ConfigurationError(
                "a datasource is given as NAME=URL, as in orders=postgresql://app@localhost/orders; a name has 1 to 32 "
                "of the characters A-Z a-z 0-9 _ . - and is not txpool, recovery or log"
            )
        if jdbc.is_url(url):
            return cls._over_jdbc(name, url)
        if of_url(url) is None:
            advice = sqlalchemy_advice(url)
            if advice:
                raise ConfigurationError(f"datasource {name}: {advice}")
            schemes = ", ".join(dict.fromkeys(scheme for manager in known() for scheme in manager.schemes))
            raise ConfigurationError(
                f"datasource {name}: its url belongs to no database that is known here: begin it with one of {schemes}"
            )
        without, password = _split(url, f"datasource {name}: its url")
        return cls(name, without, password=password)

    @classmethod
    def _over_jdbc(cls, name: str, url: str) -> NewDataSource:
        """Of a JDBC url. Which class opens it has to be known: a file names one, and a url does not."""
        if not url.isprintable():
            raise ConfigurationError(f"datasource {name}: its url has a character in it that cannot be written")
        if jdbc.has_secret(url):
            raise ConfigurationError(
                f"datasource {name}: its url has a password in it, and a JDBC url may hold it anywhere: leave it out, "
                f"and export {cls(name, url).variable}"
            )
        if url.removeprefix(_JDBC).partition(":")[0] not in KNOWN_CLASSES:
            raise ConfigurationError(
                f"datasource {name}: no Java class is known for its url, as it is for "
                f"{', '.join(f'{_JDBC}{each}:' for each in KNOWN_CLASSES)}. Nothing was written. Write its file "
                "yourself, with xaDataSourceClassName or jdbc.driver-class in it, and name it in datasources"
            )
        return cls(name, url)

    @property
    def manager(self) -> RegisteredManager:
        """The resource manager of its url."""
        manager = find_resource_manager(jdbc.DRIVER) if jdbc.is_url(self.url) else of_url(self.url)
        assert manager is not None  # noqa: S101 - `parse` has seen it
        return manager

    @property
    def is_server(self) -> bool:
        return not path_scheme(self.url)

    @property
    def variable(self) -> str:
        """The environment's variable that may hold its password."""
        return f"{re.sub('[^A-Z0-9]', '_', self.name.upper())}_PASSWORD"


def _split(url: str, whose: str) -> tuple[str, str | None]:
    """The url without its password, and the password. ConfigurationError, which shows neither."""
    if path_scheme(url):
        if not url.isprintable():
            raise ConfigurationError(f"{whose} has a character in it that cannot be written into a file")
        return url, None
    try:
        parsed = parse(url)
    except UrlError as error:
        raise ConfigurationError(f"{whose} {error}") from None
    return parsed.without, parsed.password


def node_name() -> str:
    """A name for this machine's coordinator, which stays the same: that of the host, with a number."""
    host = _NOT_IN_NODE.sub("-", socket.gethostname().partition(".")[0]).strip("-")[:24]
    return f"{host or 'node'}-1"


def with_modes(datasources: Sequence[NewDataSource], modes: Mapping[str, str]) -> list[NewDataSource]:
    """Each with its mode: the one that is given, else xa if the database can prepare, else cmr, for one of them.

    ConfigurationError if a mode is given for another name.
    """
    unknown = sorted(modes.keys() - {each.name for each in datasources})
    if unknown:
        raise ConfigurationError(f"--mode names {unknown[0]}, which is none of the datasources")
    found, marked = [], "cmr" in modes.values()
    for each in datasources:
        mode = modes.get(each.name)
        if mode is None:
            offered = each.manager.modes
            # One marked datasource can be in a transaction: of others nobody could say what they may be beside it.
            mode = next(it for it in ("xa", "cmr", "local") if it in offered and not (it == "cmr" and marked))
            marked = marked or mode == "cmr"
        found.append(replace(each, mode=mode))
    return found


def write_files(folder: Path, node: str, log_url: str, datasources: Sequence[NewDataSource]) -> list[Path]:
    """Write all files into the folder, which is made. Returns them, recovery's first.

    Errors: ConfigurationError if one exists already, or if a setting is wrong. Nothing is written then.
    """
    names = [each.name for each in datasources]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two datasources have the same name, of {', '.join(names)}: nothing was written")
    log, log_password = _split(log_url, "the log's url")
    coordination = f"node.name = {node}\nlog.url = {_from(folder, log)}\n"
    secrets = {}
    if log_password is not None:
        coordination += "log.password = ${file:log.password}\n"
        secrets["log.password"] = log_password
    files = {
        "recovery.properties": _RECOVERY.format(coordination=coordination, files=_list(names)),
        "txpool.properties": _COORDINATOR.format(coordination=coordination, files=_list(names), first=names[0]),
    }
    for each in datasources:
        files[f"{each.name}.properties"] = _datasource(folder, each)
        if each.password is not None:
            secrets[f"{each.name}.password"] = each.password
    existing = [name for name in (*files, *secrets) if (folder / name).exists()]
    if existing:
        raise ConfigurationError(
            f"{', '.join(str(folder / name) for name in existing)} {'exists' if len(existing) == 1 else 'exist'}: "
            "nothing was written. Name another folder, or move it away"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        for name, text in secrets.items():
            _write(folder / name, text, 0o600, undo)
        for name, text in files.items():
            _write(folder / name, text, 0o666, undo)
        RecoverySettings.load(folder / "recovery.properties")
        for each in datasources:
            DataSourceSettings.load(folder / f"{each.name}.properties")
        undo.pop_all()
    return [folder / name for name in files]


def _write(path: Path, text: str, mode: int, undo: ExitStack) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    undo.callback(path.unlink)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _datasource(folder: Path, datasource: NewDataSource) -> str:
    lines = [
        f"name = {datasource.name}",
        f"driver = {datasource.manager.driver}",
        f"mode = {datasource.mode}",
        f"url = {_from(folder, datasource.url).replace(_BACKSLASH, _BACKSLASH * 2)}",
    ]
    if jdbc.is_url(datasource.url):
        lines += [*_OF_JDBC, f"user = {datasource.user}" if datasource.user else "#user = app"]
    if datasource.password is not None:
        lines.append(f"password = ${{file:{datasource.name}.password}}")
    elif datasource.is_server:
        line = f"password = ${{env:{datasource.variable}}}"
        asked = "# Does the user need a password? Set the variable, and take away the # of the next line."
        lines += [line] if datasource.variable in os.environ else [asked, f"#{line}"]
    return "\n".join(lines) + "\n"


def _from(folder: Path, url: str) -> str:
    """The url of a file as it is written in this folder, whose relative paths start there; others stay as they are."""
    scheme = path_scheme(url)
    if not scheme or url.removeprefix(scheme).startswith("/"):
        return url
    return scheme + os.path.relpath(url.removeprefix(scheme), folder)


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"{name}.properties" for name in names)


#: Of a file for JDBC, whose url does not say where its driver is.
_OF_JDBC = (
    "# The driver's jars, relative to this file, with commas between them. Without this key, Java's CLASSPATH counts.",
    "#jdbc.classpath = lib/driver.jar",
    "# Who connects, if the url does not say it.",
)

_COORDINATOR = """\
# A name that stays the same, and that no other coordinator has: recovery finds by it what is ours. The decision log
# belongs on a disk that survives a restart: without the log, recovery would roll back what was committed.
{coordination}log.create = false

# Files of datasources that are known by name, as in txpool.connect("{first}").
datasources = {files}
"""

_RECOVERY = """\
# The coordinator's node and log, and every datasource that its transactions touch.
{coordination}datasources = {files}

# A scan every two minutes. If it has seen branches without a decision, it makes a second pass after the back-off, and
# rolls back those that are still there.
recovery.period = 120
recovery.backoff = 10

# A page that tells at a glance what is in doubt, with /metrics and /healthz, for this machine alone.
#status.address = 127.0.0.1:9464
"""
