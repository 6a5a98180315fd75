"""The settings of a datasource, of the coordinator and of recovery: one table of keys for each.

The tables are all there is to know about the keys: they read the values, find the nearest known key for an unknown
one, and print the configuration reference. A value comes from code before the environment before the file before
the default. Settings are immutable, and show no secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txpool.errors import ConfigurationError
from txpool.properties import Properties, nearest
from txpool.secret import Entry, Secret, Source, escaped, passwords_in

DRIVERS = ("psycopg", "sqlite3")
MODES = ("xa", "cmr", "last-resource", "local")
Options = bool | int | float | str | Path | Secret | list[Any] | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Key:
    """One key: `kind` is the getter of Properties that reads it, `limits` that getter's arguments."""

    name: str
    kind: str
    default: str | None
    doc: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    alias: str | None = None

    @property
    def word(self) -> str:
        """The key as an argument or a field is called: `pool_max_size`; in capitals, the end of a variable's name."""
        return _word(self.name)

    @property
    def type(self) -> str:
        """What a value may be, in words."""
        words = " or ".join(self.limits.get("choices", ())) or self.kind
        return f"{words} or none" if self.limits.get("none") else words

    def read(self, values: Properties) -> Any:
        """The typed value, or None."""
        return getattr(values, self.kind)(self.name, **self.limits)


_NAME = {"pattern": r"[A-Za-z0-9_.-]{1,32}", "right": "1 to 32 of the characters A-Z a-z 0-9 _ . -"}
_NODE = {"pattern": r"[A-Za-z0-9_.-]{1,28}", "right": "1 to 28 of the characters A-Z a-z 0-9 _ . -"}
_NONE = {"none": True}
_POSITIVE = {"positive": True}

DATASOURCE_KEYS = (
    Key("name", "string", None, "The datasource's name; without it, the file's own without .properties.", _NAME),
    Key("driver", "choice", None, "The DB-API driver.", {"choices": DRIVERS}),
    Key("mode", "choice", "xa", "How it takes part in a transaction.", {"choices": MODES}),
    Key("url", "url", None, "postgresql://user@host:port/database, or sqlite:///file.", alias="URL"),
    Key("user", "string", None, "The user, where the url does not name one.", alias="User"),
    Key("password", "secret", None, "The password, best as ${env:NAME} or ${file:PATH}.", alias="Password"),
    Key("pool.min-size", "integer", "0", "Connections that are kept open.", {"min": 0}),
    Key("pool.max-size", "integer", "10", "Connections at most.", {"min": 1}),
    Key("pool.max-wait", "duration", "30", "How long to wait for a connection when all are in use."),
    Key("pool.idle-timeout", "duration", "10m", "An idle connection above min-size is closed after it.", _NONE),
    Key("pool.max-lifetime", "duration", "30m", "A connection is replaced after it, less up to 2.5 %.", _NONE),
    Key("pool.check-bypass", "duration", "500ms", "A connection used within it is not checked when taken."),
    Key("pool.leak-threshold", "duration", "none", "A connection held for longer is reported, with its stack.", _NONE),
    Key(
        "managed.commit",
        "choice",
        "refuse",
        "What commit() and rollback() do inside a transaction; join is for SQLAlchemy and pandas.",
        {"choices": ("refuse", "join")},
    ),
    Key("cmr.table", "identifier", "xids", "The table of marks."),
    Key("cmr.immediate-cleanup", "boolean", "false", "Delete a mark at once rather than in batches."),
    Key("cmr.batch-size", "integer", "100", "Marks that one batch deletes.", {"min": 1}),
    Key("recovery.user", "string", None, "The user of recovery, where it is another."),
    Key("recovery.password", "secret", None, "The password of recovery's user."),
)

COORDINATOR_KEYS = (
    Key("node.name", "string", None, "The stable name of this coordinator; no two may share it.", _NODE),
    Key("log.url", "url", None, "The decision log: sqlite:///folder, postgresql://host/database, or memory: in tests."),
    Key("log.user", "string", None, "The user of a log on a server, where the url does not name one."),
    Key("log.password", "secret", None, "The password of the log's user, best as ${env:NAME} or ${file:PATH}."),
    Key("log.create", "boolean", "false", "Create a log that is missing; leave false once it exists."),
    Key("transaction.timeout", "duration", "none", "Time for a transaction that names none.", _NONE | _POSITIVE),
    Key("datasources", "paths", None, "The datasources' files, with commas between them."),
)

RECOVERY_KEYS = (
    Key("recovery.period", "duration", "120", "From the end of one pass to the next.", _POSITIVE),
    Key("recovery.backoff", "duration", "10", "Between the two scans of a pass."),
    Key("recovery.lock-timeout", "duration", "5s", "Longest wait for a lock on a mark.", _POSITIVE),
    Key(
        "recovery.expiry.interval", "duration", "12h", "Accepted, without effect: this version expires nothing.", _NONE
    ),
)


def reference(keys: Iterable[Key]) -> str:
    """A table of keys in Markdown."""
    rows = [f"| `{key.name}` | {key.type} | {f'`{key.default}`' if key.default else ''} | {key.doc} |" for key in keys]
    return "\n".join(["| key | type | default | |", "|---|---|---|---|", *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSourceSettings:
    """One database. Durations are seconds, and None means never; `url` has no password and an absolute path."""

    name: str
    driver: str
    mode: str
    url: str
    user: str | None
    password: Secret | None
    pool_min_size: int
    pool_max_size: int
    pool_max_wait: float
    pool_idle_timeout: float | None
    pool_max_lifetime: float | None
    pool_check_bypass: float
    pool_leak_threshold: float | None
    managed_commit: str
    cmr_table: str
    cmr_immediate_cleanup: bool
    cmr_batch_size: int
    recovery_user: str | None
    recovery_password: Secret | None
    driver_options: Mapping[str, Any]
    properties: Properties = field(repr=False, compare=False)

    @classmethod
    def load(cls, source: str | Path | Properties | None = None, **options: Options) -> DataSourceSettings:
        """Read a file, or nothing, and what code (`pool_max_size=5`) and TXPOOL_DS_<NAME>_… say before it."""
        return cls._from_layers(_file(source), _from_code(options, DATASOURCE_KEYS, "driver."))

    @classmethod
    def _from_layers(cls, file: Properties, code: Mapping[str, Entry]) -> DataSourceSettings:
        stem = {"name": Entry("name", file.path.stem, str(file.path), file.folder, Source.DEFAULT)} if file.path else {}
        file = _checked(file, DATASOURCE_KEYS, "driver.")
        name = DATASOURCE_KEYS[0].read(file.overlaid(stem, code))
        if name is None:
            raise file.error("name", "is missing: write name = orders, or whatever it is to be called")
        prefix = f"TXPOOL_DS_{''.join(c if c.isalnum() else '_' for c in name.upper())}_"
        layers = _from_environment(prefix, DATASOURCE_KEYS[1:], "driver."), code
        values = file.overlaid(stem, _defaults(DATASOURCE_KEYS, file), *layers)
        fields = {key.word: key.read(values) for key in DATASOURCE_KEYS}
        fields["password"] = _password(values)
        passed = {key.removeprefix("driver."): values.plain(key) for key in values if key.startswith("driver.")}
        settings = cls(**fields, driver_options=passed, properties=values)
        settings._check(prefix)
        return settings

    def _check(self, prefix: str) -> None:
        values = self.properties
        if self.driver is None:
            raise values.error("driver", f"is missing: write driver = {' or driver = '.join(DRIVERS)}")
        sqlite = self.driver == "sqlite3"
        form = "sqlite:///file.db" if sqlite else "postgresql://user@host:5432/database"
        if self.url is None:
            raise values.error("url", f"is missing: write url = {form}, or set {prefix}URL")
        starts = ("sqlite:///",) if sqlite else ("postgresql://", "postgres://")
        if not self.url.startswith(starts) or passwords_in(self.url):
            raise values.error("url", f"is no url for {self.driver}: write {form}; passwords have keys of their own")
        if sqlite and self.url.endswith((":memory:", "/")):
            raise values.error("url", f"names no file, and what is in memory cannot be recovered: write {form}")
        if sqlite and self.mode == "xa":
            raise values.error("mode", "cannot be: SQLite cannot prepare. Write mode = cmr, or last-resource or local")
        for key in ("user", "password", "recovery.user", "recovery.password"):
            if sqlite and key in values:
                raise values.error(key, "has no use: SQLite knows no users. Leave it out")
            if f"driver.{key}" in values:
                raise values.error(f"driver.{key}", f"is not passed to the driver: write {key}")
        if self.pool_min_size > self.pool_max_size:
            raise values.error("pool.min-size", f"is above pool.max-size, which is {self.pool_max_size}: lower it")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Every secret, for `redact`."""
        found = (self.password, self.recovery_password, *self.driver_options.values())
        return tuple(secret for secret in found if isinstance(secret, Secret))

    def connect_options(self, recovery: bool = False) -> dict[str, Any]:
        """What the driver's connect takes beside the url, secrets revealed: never log or keep it."""
        user, password = self.user, self.password
        if recovery and self.recovery_user:
            user, password = self.recovery_user, self.recovery_password
        options = dict(self.driver_options, user=user, password=password)
        return {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in options.items()
            if value is not None
        }

    def travel(self) -> dict[str, Any]:
        """Plain data for another process, references unresolved; see `arrive`.

        A file that holds a password itself travels as its path only, and a password from code not at all.
        """
        values = self.properties
        entries = [values.entry(key) for key in values]
        inside = values.inline
        readable = values.path is not None and os.access(values.folder / values.path.name, os.R_OK)
        for entry in inside:
            if entry.source is not Source.FILE or not readable:
                raise entry.stays_here()
        return {
            "name": self.name,
            "text": None if inside else values.text,
            "folder": str(values.folder),
            "path": None if values.path is None else str(values.folder / values.path.name),
            "overrides": {e.key: (e.raw, str(e.folder)) for e in entries if e.source > Source.FILE},
        }

    @classmethod
    def arrive(cls, travelled: Mapping[str, Any]) -> DataSourceSettings:
        """The settings again, in the process that `travel`'s data reached; a path alone is read there."""
        path, text = travelled["path"], travelled["text"]
        if text is not None:
            file = Properties.parse(text, path=path, folder=Path(travelled["folder"]))
        elif os.access(path, os.R_OK):
            file = Properties.load(path)
        else:
            raise ConfigurationError(
                f"{path}: holds a password itself, so it did not travel, and it cannot be read here: "
                "write the password as ${env:NAME} or ${file:PATH}"
            )
        code = {
            key: Entry(key, raw, "code", Path(folder), Source.CODE)
            for key, (raw, folder) in travelled["overrides"].items()
        }
        return cls._from_layers(file, code | _from_code({"name": travelled["name"]}, DATASOURCE_KEYS))

    def __reduce__(self) -> tuple[Any, ...]:
        return DataSourceSettings.arrive, (self.travel(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The coordinator of this process; what is not configured is None. Durations are seconds."""

    node_name: str | None
    log_url: str | None
    log_user: str | None
    log_password: Secret | None
    log_create: bool
    transaction_timeout: float | None
    datasources: tuple[Path, ...]
    properties: Properties = field(repr=False, compare=False)

    @classmethod
    def load(cls, source: str | Path | Properties | None = None, **options: Options) -> CoordinatorSettings:
        """Read a file, or nothing, and what code (`node_name="etl-1"`) and TXPOOL_… say before it.

        The keys of recovery may stand in the same file.
        """
        return cls(**_coordinator_fields(COORDINATOR_KEYS, source, options))

    @classmethod
    def find(cls) -> CoordinatorSettings:
        """Load what TXPOOL_CONF names, else conf/txpool.properties if it is there, else no file."""
        named = os.environ.get("TXPOOL_CONF")
        path = Path(named or "conf/txpool.properties")
        if named and not path.is_file():
            raise ConfigurationError(f"TXPOOL_CONF = {named!r} names no file: name one, or unset the variable")
        return cls.load(path if path.is_file() else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(CoordinatorSettings):
    """The recovery manager: the coordinator's settings, and its own."""

    recovery_period: float
    recovery_backoff: float
    recovery_lock_timeout: float
    recovery_expiry_interval: float | None

    @classmethod
    def load(cls, source: str | Path | Properties | None = None, **options: Options) -> RecoverySettings:
        """Read a file, or nothing, and what code and TXPOOL_… say before it."""
        return cls(**_coordinator_fields(COORDINATOR_KEYS + RECOVERY_KEYS, source, options))


def _coordinator_fields(
    keys: tuple[Key, ...], source: str | Path | Properties | None, options: Mapping[str, Options]
) -> dict[str, Any]:
    known = COORDINATOR_KEYS + RECOVERY_KEYS
    file = _checked(_file(source), known)
    values = file.overlaid(_defaults(known, file), _from_environment("TXPOOL_", known), _from_code(options, known))
    fields = {key.word: key.read(values) for key in known}
    fields["log_password"] = _password(values, "log.password", "log.url")
    if fields["log_url"] is not None:
        _check_log(values, fields["log_url"])
    return {key.word: fields[key.word] for key in keys} | {"properties": values}


def _check_log(values: Properties, url: str) -> None:
    form = "write sqlite:///folder, postgresql://user@host:5432/database, or memory: in tests"
    if not re.fullmatch("memory:|sqlite:///.+|postgresql://.+", url) or passwords_in(url):
        raise values.error("log.url", f"is no place for a log: {form}; passwords have keys of their own")
    for key in ("log.user", "log.password"):
        if key in values and not url.startswith("postgresql:"):
            raise values.error(key, "has no use: only a log on a server has users. Leave it out")


def _word(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _file(source: str | Path | Properties | None) -> Properties:
    if source is None:
        return Properties({}, "", Path.cwd())
    return source if isinstance(source, Properties) else Properties.load(source)


def _checked(file: Properties, keys: tuple[Key, ...], passed: str | None = None) -> Properties:
    """The file with its keys known, and Narayana's spellings made ours."""
    if "xaDataSourceClassName" in file:
        raise file.error(
            "xaDataSourceClassName", "names a JDBC driver, and JDBC is no part of this version: write driver = psycopg"
        )
    aliases = {key.alias: key.name for key in keys if key.alias}
    file.check([*(key.name for key in keys), *aliases], passed)
    entries: dict[str, Entry] = {}
    for key in file:
        entry = file.entry(key)
        name = aliases.get(key, key)
        if name in entries:
            first = next(other for other in file if aliases.get(other, other) == name)
            raise entry.error(f"is given as {first} too ({entries[name].where}): leave one out")
        entries[name] = replace(entry, key=name)
    return Properties(entries, file.text, file.folder, file.path)


def _defaults(keys: tuple[Key, ...], file: Properties) -> dict[str, Entry]:
    where = f"{file.path or 'the arguments'}, by default"
    return {
        key.name: Entry(key.name, key.default, where, file.folder, Source.DEFAULT)
        for key in keys
        if key.default is not None
    }


def _from_code(options: Mapping[str, Options], keys: tuple[Key, ...], passed: str | None = None) -> dict[str, Entry]:
    """Arguments: a word for each key; `driver_x` is passed on as `driver.x`; None is one that was not given."""
    words = {key.word: key.name for key in keys}
    group = _word(passed or "")
    entries: dict[str, Entry] = {}
    for option, value in options.items():
        word = _word(option)
        name = words.get(word)
        if name is None and group and word.startswith(group):
            name = f"{passed}{word.removeprefix(group)}"
        if name is None:
            raise ConfigurationError(f"unknown argument {option}: {nearest(word, words)}")
        if value is None:
            continue
        where, folder = f"argument {option}", Path.cwd()
        if isinstance(value, Secret):
            entries[name] = replace(value.entry, key=name, where=where, source=Source.CODE)
        elif isinstance(value, bool | int | float | str | Path | list | tuple):
            raw = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            raw = raw.lower() if isinstance(value, bool) else raw
            entries[name] = Entry(name, raw, where, folder, Source.CODE)
        else:
            raise ConfigurationError(f"{where}: a {type(value).__name__} cannot travel: give text or a number")
    return entries


def _from_environment(prefix: str, keys: tuple[Key, ...], passed: str | None = None) -> dict[str, Entry]:
    """Variables: what the prefix is followed by is a key in capitals. One that holds a password stays a reference."""
    words = {key.word.upper(): key.name for key in keys}
    groups = tuple({f"{key.name.split('.')[0].upper()}_" for key in keys if "." in key.name})
    group = _word(passed or "").upper()
    entries: dict[str, Entry] = {}
    for variable in sorted(os.environ):
        word = variable.removeprefix(prefix)
        if word == variable:
            continue
        name = words.get(word)
        if name is None and group and word.startswith(group):
            name = f"{passed}{word.removeprefix(group).lower()}"
        if name is not None:
            entry = Entry(
                name, escaped(os.environ[variable]), f"the variable {variable}", Path.cwd(), Source.ENVIRONMENT
            )
            entries[name] = replace(entry, raw=f"${{env:{variable}}}") if entry.inline else entry
        elif word.startswith(groups) and not any(word.endswith(f"_{known}") for known in words):
            # One that ends as a known key does may be another datasource's, whose name begins as this one's.
            raise ConfigurationError(f"unknown variable {variable}: {nearest(word, words)}")
    return entries


def _password(values: Properties, key: str = "password", url: str = "url") -> Secret | None:
    """The password of its own key or in the url: the one that comes from the higher source."""
    own, in_url = values.secret(key), values.url_secret(url)
    if own is None or in_url is None:
        return own or in_url
    if own.entry.source == in_url.entry.source:
        raise values.error(key, f"is given twice, here and in the url ({in_url.entry.where}): leave one out")
    return max(own, in_url, key=lambda secret: secret.entry.source)
