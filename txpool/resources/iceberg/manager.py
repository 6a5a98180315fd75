"""The resource manager of `driver = iceberg`: its catalog is in a datasource, whose branches carry its work, or a REST
server's, where the branches are references.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from txpool.config.secrets import Secret, redact
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.findings.finding import Finding, failure, ok
from txpool.resource_managers import ICEBERG
from txpool.resources.manager import ResourceManager
from txpool.resources.parts import SparkPart
from txpool.resources.recovery_access import NothingPrepared

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.base import BegunBy
    from txpool.resources.recovery_access import BranchRecovery, StagingArea

#: The warehouses that are in an object store.
IN_BUCKETS = re.compile("s3://")
#: pyiceberg's names of what reaches an object store, and of two more, and S3's client's.
_STORE = {
    "s3.endpoint": "endpoint_url",
    "s3.region": "region_name",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.addressing-style": "addressing_style",
    "s3.verify": "verify",
}
_IN_A_BUCKET = re.compile(r"s3://[^/]+(/(?!\.{1,2}(/|$))[^/]+)*/?")
_PASSWORD = re.compile(r"//[^/?#]*:[^/?#]*@")


class LakeConflict(OperationalError):
    """Another transaction has committed a change of the same table meanwhile; this one rolls back."""


class Iceberg(ResourceManager):
    """Lakes. Their journals are what recovery sweeps, as it does what Spark's writes have staged.

    With a catalog in a datasource they prepare nothing by themselves: the tables' pointers are in that one's branches.
    """

    driver = ICEBERG
    database = "Iceberg"
    schemes = (f"{ICEBERG}:",)
    url_example = f"{ICEBERG}:warehouse"
    requirement = "txpool[lake]"
    spark = SparkPart(
        "txpool.spark.table.lake.write:LakeWrite",
        why_no_tasks="has Iceberg tables, which the tasks of write_table() write in one way",
    )
    orphaned_after = 86_400.0  # Spark's remove_orphan_files takes no less
    instead_of_connecting = "its tables are in files, and txpool.lake.catalog() works with them"

    def check(self, settings: DataSourceSettings) -> None:
        error, where = settings.properties.error, ("catalog", "lake.properties")
        if settings.catalog_type:
            where = ("catalog.uri", "https://host/catalog")
            if settings.catalog is not None:
                raise error("catalog", "is given beside catalog.type = rest: leave one out")
            if _PASSWORD.search(settings.catalog_uri or ""):
                raise error("catalog.uri", "has a password in it: passwords have a key of their own, password")
        elif settings.catalog_uri:
            raise error("catalog.uri", "has no use without catalog.type = rest")
        if IN_BUCKETS.match(settings.warehouse or ""):
            if not _IN_A_BUCKET.fullmatch(settings.warehouse or ""):
                raise error("warehouse", "names no bucket, or no folder in it: write warehouse = s3://bucket/warehouse")
            if settings.catalog_type:
                for name in settings.driver_options:
                    if name.startswith("s3.") and name not in _STORE:
                        raise error(f"driver.{name}", f"has no use: write driver.{', driver.'.join(_STORE)}")
            elif settings.credentials is not None or settings.issuer is not None:
                raise error("credentials", "has no use: S3's own sources of credentials renew them")
        for key, example in (where, ("warehouse", "warehouse")):
            if key not in settings.properties:
                raise error(key, f"is missing: write {key} = {example}")

    def begin(self, source: Source, transaction: BegunBy, timeout: float | None) -> tuple[Any, Any]:
        if not source.settings.catalog_type:
            return super().begin(source, transaction, timeout)
        begun: tuple[Any, Any] = _rest(source.settings, "branch:begin")(source, transaction)
        return begun

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> BranchRecovery:
        if not settings.catalog_type:
            return NothingPrepared(settings.name)
        access: BranchRecovery = _rest(settings, "branch:ReferencesRecovery")(settings, recovery=recovery)
        return access

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagingArea | None:
        area: StagingArea
        if settings.catalog_type:
            area = _rest(settings, "branch:ReferencesStaging")(settings)
        else:
            area = resolve_name("txpool.lake.warehouse:LakeStaging")(settings, lock_timeout)
        return area

    def workload(self, source: Source) -> Any:
        settings = source.settings
        return _rest(settings, "workload:KitTable")(settings) if settings.catalog_type else None

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        theirs = sys.modules.get("pyiceberg.exceptions")
        conflicts = () if theirs is None else (theirs.CommitFailedException, theirs.ValidationException)
        return isinstance(error, (LakeConflict, *conflicts))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        if settings.catalog_type:
            yield from _rest(settings, "check:findings")(settings)
            return
        try:
            yield from resolve_name("txpool.lake.check:findings")(settings)
        except Exception as error:  # also SQLAlchemy's
            yield failure("connection", f"{settings.name} cannot be used: {redact(described(error), settings.secrets)}")
            return
        yield ok("connection", f"the catalog of {settings.name} is in {settings.catalog}: check that file, too")


def store_options(settings: DataSourceSettings, *, recovery: bool = False) -> dict[str, Any]:
    """The options of the client of the warehouse's bucket, secrets revealed: never log or keep them.

    A REST server's catalog has the user and the password to itself, and what it tells of the bucket is not used.
    """
    if not settings.catalog_type:
        return settings.connect_options(recovery)
    return {
        _STORE[name]: value.reveal() if isinstance(value, Secret) else value
        for name, value in settings.driver_options.items()
        if name in _STORE
    }


def _rest(settings: DataSourceSettings, name: str) -> Any:
    """What serves a REST server's catalog. ConfigurationError if what it needs is not installed."""
    try:
        return resolve_name(f"txpool.lake.rest.{name}")
    except ImportError as error:
        raise ConfigurationError(
            f"datasource {settings.name}: catalog.type = rest needs pyiceberg and pyarrow: pip install 'txpool[lake]' "
            f"({described(error)})"
        ) from error


MANAGER = Iceberg()
