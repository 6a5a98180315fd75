"""The settings of recovery: the coordinator's, and its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txpool.config.address import Address
from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.logins import AllowedLogin
from txpool.config.properties import Properties
from txpool.config.secrets import Secret
from txpool.config.settings.coordinator import CoordinatorSettings, fields_of
from txpool.config.settings.layers import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(CoordinatorSettings):
    """The recovery manager: the coordinator's settings, and its own."""

    #: Empty for the own node alone.
    recovery_nodes: tuple[str, ...]
    recovery_period: float
    recovery_backoff: float
    recovery_lock_timeout: float
    recovery_step_timeout: float
    recovery_overdue_rollback: float | None
    recovery_orphan_filters: tuple[str, ...]
    #: The logins by which recovery may reach datasources that were made in code.
    recovery_noted: tuple[AllowedLogin, ...]
    recovery_modules: tuple[str, ...]
    #: The datasources whose outboxes are looked into.
    recovery_outboxes: tuple[str, ...]
    recovery_expiry_interval: float | None
    recovery_expiry_skip_first: bool
    recovery_expiry_scanners: tuple[str, ...]
    status_address: Address | None
    status_token: Secret | None
    #: Those of healthz and metrics that take no token.
    status_public: tuple[str, ...]
    alarm_in_doubt: float | None
    alarm_slots: float | None

    @classmethod
    def load(cls, source: str | Path | Properties | None = None, **options: Options) -> RecoverySettings:
        """Read a file, if any. Options and TXPOOL_… take precedence over it."""
        return cls(**fields_of(COORDINATOR_KEYS + RECOVERY_KEYS, source, options))
