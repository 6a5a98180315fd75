"""Making the driver of a datasource."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError, NotSupportedError
from txpool.resource_managers import find_resource_manager
from txpool.resources.database import Database
from txpool.resources.driver.driver import Driver

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

__all__ = ["Driver", "make_driver", "not_installed"]


def make_driver(settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
    """The driver of a datasource, with `recovery` for recovery's own user. ConfigurationError if it is missing."""
    manager = find_resource_manager(settings.driver)
    if not isinstance(manager, Database):
        raise NotSupportedError(f"datasource {settings.name} has no driver: {manager.instead_of_connecting}")
    try:
        return manager.make_driver(settings, recovery=recovery)
    except ModuleNotFoundError as error:
        raise not_installed(settings, error) from error


def not_installed(settings: DataSourceSettings, error: ModuleNotFoundError) -> ConfigurationError:
    """The error that names what to install."""
    requirement = find_resource_manager(settings.driver).requirement
    advice = f"pip install '{requirement}'" if requirement else "install it"
    return ConfigurationError(
        f"datasource {settings.name}: driver {settings.driver} needs {error.name}, which is not installed: {advice}"
    )
