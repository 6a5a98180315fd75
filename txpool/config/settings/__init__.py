"""The settings of a datasource, of the coordinator and of recovery. They are immutable, and show no secret."""

from txpool.config.settings.coordinator import CoordinatorSettings
from txpool.config.settings.datasource import DataSourceSettings
from txpool.config.settings.recovery import RecoverySettings

__all__ = ["CoordinatorSettings", "DataSourceSettings", "RecoverySettings"]
