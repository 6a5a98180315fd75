"""The settings of the coordinator, and what the keys of it and of recovery must be beside each other."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txpool.config.address import Address
from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS, Key
from txpool.config.properties import Properties
from txpool.config.secrets import Secret, redact_url
from txpool.config.settings.layers import Options, checked, defaults, file_of, from_code, from_environment, password_of
from txpool.config.sqlalchemy_url import sqlalchemy_advice
from txpool.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The coordinator of this process. A key that is not configured is None. Durations are in seconds."""

    node_name: str | None
    log_url: str | None
    log_user: str | None
    log_password: Secret | None
    log_create: bool
    transaction_timeout: float | None
    transaction_leak_threshold: float | None
    transaction_phase_two_wait: float | None
    transaction_wait_report: float | None
    control_folder: Path | None
    datasources: tuple[Path, ...]
    properties: Properties = field(repr=False, compare=False)

    @classmethod
    def load(cls, source: str | Path | Properties | None = None, **options: Options) -> CoordinatorSettings:
        """Read a file, if any. Options (`node_name="etl-1"`) and TXPOOL_… take precedence over it.

        The file may have recovery's keys as well.
        """
        return cls(**fields_of(COORDINATOR_KEYS, source, options))

    @classmethod
    def find(cls) -> CoordinatorSettings:
        """Read the file that TXPOOL_CONF names, else conf/txpool.properties if it exists, else no file."""
        named = os.environ.get("TXPOOL_CONF")
        path = Path(named or "conf/txpool.properties")
        if named and not path.is_file():
            raise ConfigurationError(
                f"TXPOOL_CONF = {redact_url(named)!r} names no file: name one, or unset the variable"
            )
        return cls.load(path if path.is_file() else None)


def fields_of(
    keys: tuple[Key, ...], source: str | Path | Properties | None, options: Mapping[str, Options]
) -> dict[str, Any]:
    """The fields of these keys. The file may have the keys of the coordinator and of recovery. ConfigurationError."""
    known = COORDINATOR_KEYS + RECOVERY_KEYS
    file = checked(file_of(source), known)
    values = file.overlaid(defaults(known, file), from_environment("TXPOOL_", known), from_code(options, known))
    fields = {key.word: key.read(values) for key in known}
    fields["log_password"] = password_of(values, "log.password", "log.url")
    if fields["log_url"] is not None:
        _check_log(values, fields["log_url"])
        _check_nodes(values, fields["recovery_nodes"], fields["node_name"], fields["log_url"])
    _check_status(values, fields["status_address"])
    return {key.word: fields[key.word] for key in keys} | {"properties": values}


def _check_status(values: Properties, address: Address | None) -> None:
    if address is not None and not address.loopback and "status.token" not in values:
        raise values.error(
            "status.address",
            "can be reached from other machines: write status.token, too, or serve it on this one, 127.0.0.1:9464",
        )


def _check_log(values: Properties, url: str) -> None:
    form = (
        "write sqlite:///folder, postgresql://user@host:5432/database, mysql://user@host:3306/database, or memory: in "
        "tests"
    )
    if not re.fullmatch("memory:|sqlite:///.+|(postgresql|mysql|mariadb)://.+", url, re.DOTALL):
        advice = sqlalchemy_advice(url) or f"{form}; passwords have keys of their own"
        raise values.error("log.url", f"cannot name a log: {advice}")
    for key in ("log.user", "log.password"):
        if key in values and not _is_server(url):
            raise values.error(key, "has no use: only a log on a server has users. Leave it out")


def _is_server(log: str) -> bool:
    return not log.startswith(("memory:", "sqlite:"))


def _check_nodes(values: Properties, nodes: tuple[str, ...], own: str | None, log: str) -> None:
    if "*" in nodes and len(nodes) > 1:
        raise values.error("recovery.nodes", "names nodes beside *, which means all of them: write one or the other")
    others = ", ".join(node for node in nodes if node not in ("*", own))
    if others and not _is_server(log):
        raise values.error(
            "recovery.nodes",
            f"cannot have {others}: a log in a folder is its own node's alone, which is {own}. Leave it out, and run "
            "recovery where that node's folder is; or share one log, log.url = postgresql://user@host:5432/database",
        )
