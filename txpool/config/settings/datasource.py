"""The settings of a datasource. They are immutable, and show no secret."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txpool.config import jdbc
from txpool.config.keys import BROKERS, DATASOURCE_KEYS
from txpool.config.keys.kinds import JUDGED, drivers_with, why_no_use
from txpool.config.ownership import require_owned
from txpool.config.properties import Properties
from txpool.config.secrets import ConfiguredValue, Secret, ValueSource, escaped
from txpool.config.settings.credentials import Credentials, CredentialsFunction
from txpool.config.settings.layers import Options, checked, defaults, file_of, from_code, from_environment, password_of
from txpool.config.sqlalchemy_url import sqlalchemy_advice
from txpool.errors import ConfigurationError
from txpool.resource_managers import (
    DELTA,
    DRIVERS,
    FILES,
    ICEBERG,
    QUEUE,
    RegisteredManager,
    find_resource_manager,
    names_code,
)
from txpool.sql.characteristics import Characteristics

#: Drivers whose place is told by a key of theirs, and that key's field.
_PLACES = {QUEUE: "queue_datasource", FILES: "folder", DELTA: "folder", ICEBERG: "warehouse"}


def variables_prefix(name: str) -> str:
    """The beginning of the environment's variables for the datasource of this name: `TXPOOL_DS_ORDERS_`."""
    return f"TXPOOL_DS_{''.join(c if c.isalnum() else '_' for c in name.upper())}_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSourceSettings:
    """A datasource. Durations are in seconds, None means never; `url` has no password, and a path in it is absolute."""

    name: str
    driver: str
    mode: str
    url: str
    user: str | None
    password: Secret | None
    #: Not shown: whoever writes user:password there gives the form of module:function.
    credentials: str | None = field(repr=False)
    xaDataSourceClassName: str | None  # noqa: N815 - the key's name, which is Narayana's
    jdbc_driver_class: str | None
    jdbc_classpath: tuple[str, ...]
    jvm_options: str | None
    h2_accept: str | None
    pool_enabled: bool
    pool_min_size: int
    pool_max_size: int
    pool_max_wait: float
    pool_idle_timeout: float | None
    pool_max_lifetime: float | None
    pool_keepalive: float | None
    pool_check_bypass: float
    pool_check_timeout: float
    pool_leak_threshold: float | None
    pool_reset: str
    #: Not shown: a reference in it may be a secret.
    pool_initial_sql: str | None = field(repr=False)
    managed_commit: str
    transaction_required: str
    transaction_isolation: str | None
    transaction_read_only: bool
    cmr_table: str
    cmr_immediate_cleanup: bool
    cmr_batch_size: int
    outbox_deliver: str | None
    outbox_broker: str | None
    outbox_to: str | None
    outbox_exchange: str | None
    outbox_vhost: str
    outbox_user: str | None
    outbox_password: Secret | None
    outbox_tls: bool
    outbox_attempts: int
    outbox_poll: float
    outbox_skip_parked: bool
    once_keep: float | None
    topic: str | None
    group: str | None
    offsets_datasource: Path | None
    queue: str | None
    queue_datasource: Path | None
    queue_ordered: bool
    catalog: Path | None
    catalog_type: str | None
    catalog_uri: str | None
    warehouse: str | None
    dropped_tables: tuple[str, ...]
    parking: str | None
    parking_after: int
    folder: Path | None
    bucket_owner: str | None
    staging: Path | None
    xa_evidence: str
    xa_evidence_table: str
    xa_phase_two_connections: int
    prepared_owners: tuple[str, ...]
    recovery_user: str | None
    recovery_password: Secret | None
    driver_options: Mapping[str, Any]
    properties: Properties = field(repr=False, compare=False)
    #: What supplies the user and the password of each connection; None if they are configured.
    issuer: Credentials | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        source: str | Path | Properties | None = None,
        credentials: CredentialsFunction | str | None = None,
        **options: Options,
    ) -> DataSourceSettings:
        """Read a file, if any. Options (`pool_max_size=5`) and TXPOOL_DS_<NAME>_… take precedence over it.

        `credentials` is a function, or names one as the key does. A file that names one is refused if others can write
        to it or have made it: they could run any code through it.
        """
        if credentials is None or isinstance(credentials, str):
            return cls._from_layers(
                file_of(source), from_code(options | {"credentials": credentials}, DATASOURCE_KEYS, "driver.")
            )
        return cls._from_layers(file_of(source), from_code(options, DATASOURCE_KEYS, "driver."), credentials)

    @classmethod
    def load_without_idle(cls, path: str | Path) -> DataSourceSettings:
        """Read a file for a process that opens a connection for each question: the pool keeps none open."""
        return replace(cls.load(path), pool_min_size=0)

    @classmethod
    def _from_layers(
        cls,
        file: Properties,
        code: Mapping[str, ConfiguredValue],
        function: CredentialsFunction | None = None,
        *,
        sent: bool = False,
    ) -> DataSourceSettings:
        """The settings of a file and of code; `sent` if another process has read the file, and sent its text."""
        stem = (
            {"name": ConfiguredValue("name", file.path.stem, str(file.path), file.folder, ValueSource.DEFAULT)}
            if file.path
            else {}
        )
        file = checked(file, DATASOURCE_KEYS, "driver.")
        name = DATASOURCE_KEYS[0].read(file.overlaid(stem, code))
        if name is None:
            raise file.error("name", "is missing: write name = orders, or whatever it is to be called")
        prefix = variables_prefix(name)
        layers = from_environment(prefix, DATASOURCE_KEYS[1:], "driver."), code
        values = file.overlaid(stem, defaults(DATASOURCE_KEYS, file), *layers)
        fields = {key.word: key.read(values) for key in DATASOURCE_KEYS}
        fields["password"] = password_of(values)
        if fields["driver"] is None and fields["xaDataSourceClassName"]:
            fields["driver"] = jdbc.DRIVER
        if fields["driver"] == jdbc.DRIVER and fields["url"] is None:
            fields["url"] = f"jdbc:{fields['xaDataSourceClassName'] or ''}"  # its setters say where the database is
        if fields["url"] is None and fields["driver"] in _PLACES:
            fields["url"] = f"{fields['driver']}:{fields[_PLACES[fields['driver']]] or ''}"
        passed = {key.removeprefix("driver."): values.plain(key) for key in values if key.startswith("driver.")}
        source = function or fields["credentials"]
        issuer = None if source is None else Credentials(name, source)
        settings = cls(**fields, driver_options=passed, properties=values, issuer=issuer)
        if settings.driver is not None and names_code(settings.driver) and not sent:
            settings._require_own_file("driver")  # before its module is imported
        named = fields["outbox_deliver"] not in (None, *BROKERS)
        for key in (*jdbc.CODE_KEYS, *(["outbox.deliver"] if named else [])) if not sent else ():
            if key in values:
                settings._require_own_file(key)
        settings._check(prefix)
        if issuer is not None:
            settings._check_credentials(sent=sent)
        return settings

    def _check(self, prefix: str) -> None:
        values = self.properties
        if self.driver is None:
            raise values.error("driver", f"is missing: write driver = {' or driver = '.join(DRIVERS)}")
        manager = find_resource_manager(self.driver)
        form = manager.url_example
        if self.url is None:
            raise values.error("url", f"is missing: write url = {form}, or set {prefix}URL")
        if not self.url.startswith(manager.schemes):
            advice = sqlalchemy_advice(self.url) or f"write {form}; passwords have keys of their own"
            raise values.error("url", f"is no url for {self.driver}: {advice}")
        self._check_keys()
        manager.check(self)
        if self.mode not in manager.modes:
            modes = " or ".join(manager.modes)
            raise values.error("mode", f"is none of {manager.database}'s modes. Write mode = {modes}")
        for key in ("user", "password", "recovery.user", "recovery.password"):
            if f"driver.{key}" in values:
                raise values.error(f"driver.{key}", f"is not passed to the driver: write {key}")
        refused = manager.why_not_begin(self.characteristics)
        if refused:
            key = "transaction.read-only" if self.transaction_isolation is None else "transaction.isolation"
            raise values.error(key, f"is no use: {refused}. Leave it out")
        if self.pool_min_size > self.pool_max_size:
            raise values.error("pool.min-size", f"is above pool.max-size, which is {self.pool_max_size}: lower it")
        if self.pool_min_size and not self.pool_enabled:
            raise values.error(
                "pool.min-size", "has no use: pool.enabled = false keeps no connection open. Leave it out"
            )
        if self.xa_evidence == "row" and (self.mode != "xa" or not manager.writes_rows):
            raise values.error("xa.evidence", f"is no use: {self._no_rows(manager)}. Leave it out")
        if self.mode == "cmr" and "." not in self.cmr_table and "search_path" in (self.pool_initial_sql or "").lower():
            problem = "sets search_path, by which recovery would not find the table of marks: write "
            raise values.error("pool.initial-sql", f"{problem}cmr.table = schema.{self.cmr_table}, too")

    def _check_keys(self) -> None:
        """Refuse keys of other kinds. A driver of another package may have a use for any, but for JDBC's."""
        for key in self.properties if self.driver in JUDGED else jdbc.KEYS:
            drivers = drivers_with(key)
            relays = self.outbox_deliver == jdbc.JMS and key in jdbc.JVM_KEYS
            if drivers is not None and self.driver not in drivers and not relays and self._is_given(key):
                raise self.properties.error(key, why_no_use(key, self.driver, self.properties))

    def refuse(self, keys: Iterable[str], problem: str) -> None:
        """ConfigurationError for the first of these keys that is given, and not by default."""
        for key in filter(self._is_given, keys):
            raise self.properties.error(key, problem)

    def _is_given(self, key: str) -> bool:
        return key in self.properties and self.properties.entry(key).source is not ValueSource.DEFAULT

    def _no_rows(self, manager: RegisteredManager) -> str:
        return f"{manager.database} has no such rows" if self.mode == "xa" else f"mode = {self.mode} prepares nothing"

    def _check_credentials(self, *, sent: bool) -> None:
        values = self.properties
        if find_resource_manager(self.driver).url_is_path:
            raise values.error("credentials", f"has no use: {self.driver} knows no users. Leave it out")
        if self.password is not None:
            raise self.password.entry.error("is given beside credentials, which supplies it: leave one out")
        if self.credentials is not None and not sent:
            self._require_own_file("credentials")

    def _require_own_file(self, key: str) -> None:
        """ConfigurationError if others could have written the file that gives this key, which names code to run."""
        values = self.properties
        if values.path is not None and values.entry(key).source is ValueSource.FILE:
            require_owned(values.folder / values.path.name, "it names code to run")

    @property
    def trusts_anybody(self) -> bool:
        """Whether what anybody has prepared is ours, on a server that does not tell who has: prepared.owners = any."""
        return "any" in self.prepared_owners

    @property
    def characteristics(self) -> Characteristics:
        """How its local transactions begin, if a transaction asks for nothing else."""
        return Characteristics(self.transaction_isolation, True if self.transaction_read_only else None)

    @property
    def file(self) -> str:
        """The absolute path of its file; empty if it was configured in code."""
        values = self.properties
        return "" if values.path is None else str(values.folder / values.path.name)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Every secret, for `redact`."""
        issued = () if self.issuer is None else self.issuer.issued
        found = (self.password, self.recovery_password, *self.driver_options.values(), *issued)
        return tuple(secret for secret in found if isinstance(secret, Secret))

    @property
    def parking_queue(self) -> str:
        """The queue for messages that a consumer could not do."""
        return self.parking or f"{self.name}-parked"

    def connect_options(self, recovery: bool = False) -> dict[str, Any]:
        """The arguments of the driver's connect beside the url, secrets revealed: never log or keep them.

        If a function supplies the credentials, it is called.
        """
        user, password = self.user, self.password
        if recovery and self.recovery_user:
            user, password = self.recovery_user, self.recovery_password
        elif self.issuer is not None:
            issued_user, password = self.issuer.issue()
            user = issued_user or user
        options = dict(self.driver_options, user=user, password=password)
        return {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in options.items()
            if value is not None
        }

    def serialized(self) -> dict[str, Any]:
        """The settings as plain data for another process, references unresolved; see `from_serialized`.

        Of a file that holds a password itself, only the path is serialized. ConfigurationError for a password, or a
        function, from code, or if that file cannot be read.
        """
        if self.issuer is not None and not self.issuer.name:
            raise ConfigurationError(
                f"datasource {self.name}: credentials is a function given in code, which cannot travel to another "
                "process: write credentials = package.module:function, of a module that is installed there, too"
            )
        values = self.properties
        entries = [values.entry(key) for key in values]
        inside = values.inline
        readable = values.path is not None and os.access(values.folder / values.path.name, os.R_OK)
        for entry in inside:
            if entry.source is not ValueSource.FILE or not readable:
                raise entry.stays_here()
        return {
            "name": self.name,
            "text": None if inside else values.text,
            "folder": str(values.folder),
            "path": self.file or None,
            "overrides": {e.key: (e.raw, str(e.folder)) for e in entries if e.source > ValueSource.FILE},
        }

    @classmethod
    def from_serialized(cls, serialized: Mapping[str, Any]) -> DataSourceSettings:
        """The settings that `serialized()` returned in another process; a file of which only the path came is read."""
        path, text = serialized["path"], serialized["text"]
        if text is not None:
            file = Properties.parse(text, path=path, folder=Path(serialized["folder"]))
        elif os.access(path, os.R_OK):
            file = Properties.load(path)
        else:
            raise ConfigurationError(
                f"{path}: holds a password itself, so its text was not sent, and it cannot be read here: "
                "write the password as ${env:NAME} or ${file:PATH}"
            )
        code = {
            key: ConfiguredValue(key, raw, "code", Path(folder), ValueSource.CODE)
            for key, (raw, folder) in serialized["overrides"].items()
        }
        code |= from_code({"name": serialized["name"]}, DATASOURCE_KEYS)
        return cls._from_layers(file, code, sent=text is not None)

    def under(self, user: str | None, password: str | Secret | None) -> DataSourceSettings:
        """The same with other credentials, for one connection; without `user`, the same user."""
        secret = Secret(escaped(password)) if isinstance(password, str) else password
        return replace(self, user=user or self.user, password=secret, issuer=None)

    def __reduce__(self) -> tuple[Any, ...]:
        return DataSourceSettings.from_serialized, (self.serialized(),)
