"""Which kind of journals a warehouse has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from txpool.lake.journals.bucket import BucketJournals
from txpool.lake.journals.folder import Journals
from txpool.resources.iceberg.manager import IN_BUCKETS

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.lake.journals.base import WarehouseJournals


def journals_of(settings: DataSourceSettings, *, recovery: bool = False) -> WarehouseJournals:
    """The journals of the warehouse that a file describes. ConfigurationError if botocore is missing for a bucket."""
    root = settings.warehouse or ""
    if IN_BUCKETS.match(root):
        return BucketJournals(settings, recovery=recovery)
    return Journals(settings.name, os.path.realpath(root))
