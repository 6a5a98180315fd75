"""The resource manager of object stores that speak S3: `driver = s3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txpool.errors import OperationalError, described
from txpool.findings.finding import Finding, failure, ok
from txpool.resources.files.place import HIDDEN, Place
from txpool.resources.manager import ResourceManager
from txpool.resources.s3.branch import BucketResource, ObjectsBranch, ObjectsRecovery, StagedUploads
from txpool.resources.s3.bucket import Bucket, StoreError, require_client
from txpool.resources.s3.work import ObjectsWork

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.base import BegunBy

#: What a store answers if it is overloaded, or fails: no answer has no code.
OUTAGES = frozenset(
    {"", "500", "502", "503", "504", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
_made: WeakKeyDictionary[Any, BucketResource] = WeakKeyDictionary()


class S3(ResourceManager):
    """Buckets of an object store."""

    driver = "s3"
    database = "an object store"
    schemes = ("s3://",)
    url_example = "s3://bucket/exports"
    requirement = "txpool[s3]"
    publishes_folders = True
    instead_of_connecting = "it is an object store, and txpool.folder() writes there"

    def check(self, settings: DataSourceSettings) -> None:
        if not settings.url.removeprefix(self.schemes[0]).partition("/")[0]:
            raise settings.properties.error("url", f"names no bucket: write url = {self.url_example}")
        if settings.credentials is not None or settings.issuer is not None:
            raise settings.properties.error("credentials", "has no use: S3's own sources of credentials renew them")

    def begin(self, source: Source, transaction: BegunBy, timeout: float | None) -> tuple[ObjectsWork, ObjectsBranch]:
        found = _made.get(source)
        if found is None:
            found = _made.setdefault(source, self._resource(source.settings))
        work = ObjectsWork(found.bucket, transaction.gtrid, self._place(source.settings))
        return work, ObjectsBranch(found, work, transaction.gtrid)

    def _place(self, settings: DataSourceSettings) -> Place | None:
        """Where Spark's writer writes; None if it does not."""
        return None if settings.staging is None else Place(settings.name, str(settings.staging))

    def bucket(
        self,
        settings: DataSourceSettings,
        *,
        recovery: bool = False,
        url: str = "",
        hidden: str = HIDDEN,
        options: Mapping[str, Any] | None = None,
    ) -> Bucket:
        """The bucket of a datasource, or that at `url` by a client with these options.

        ConfigurationError if botocore is missing.
        """
        require_client(settings.name, self.requirement)
        account = settings.bucket_owner or ""
        if options is None:
            options = settings.connect_options(recovery)
        return Bucket(settings.name, url or settings.url, options, account, settings.prepared_owners, hidden=hidden)

    def _resource(self, settings: DataSourceSettings, *, recovery: bool = False) -> BucketResource:
        return BucketResource(self.bucket(settings, recovery=recovery), settings.file)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> ObjectsRecovery:
        return ObjectsRecovery(self._resource(settings, recovery=recovery))

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagedUploads:
        return StagedUploads(self.bucket(settings, recovery=True), self._place(settings))

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, StoreError) and error.code in OUTAGES

    def ends_after(self, settings: DataSourceSettings) -> float | None:
        from txpool.resources.s3.check import DAY, aborted_after, lifecycle

        bucket = self.bucket(settings)
        try:
            days = aborted_after(bucket, lifecycle(bucket))
        except StoreError:  # a finding says so
            return None
        return None if days is None else days * DAY

    def workload(self, source: Source) -> Any:
        from txpool.resources.s3.workload import KitObjects

        return KitObjects(self.bucket(source.settings))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.s3.check import findings

        bucket, place = self.bucket(settings), self._place(settings)
        try:
            yield from findings(bucket, settings.prepared_owners)
            if place is not None:
                place.identity()
                yield ok("staging", f"Spark's writer writes into {place.path}, which every executor must have there")
        except OperationalError as error:
            what = "connection" if isinstance(error, StoreError) else "staging"
            yield failure(what, f"{settings.name} does not answer: {described(error)}")


MANAGER = S3()
