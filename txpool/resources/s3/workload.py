"""What the conformance kit publishes, and reads: each key is a folder with one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.resources.s3.bucket import NOT_THERE, Bucket, StoreError

if TYPE_CHECKING:
    from txpool.resources.s3.work import ObjectsWork


class KitObjects:
    """Objects with the kit's keys as names."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._keys: set[str] = set()

    def write(self, work: ObjectsWork, key: str) -> None:
        """Stage an object."""
        self._keys.add(key)
        with work.folder(key, overwrite=False).open("key") as file:
            file.write(key)

    def visible(self, key: str) -> bool:
        """Whether the object is there, and whole."""
        try:
            return self._bucket.read(f"{self._bucket.prefix}{key}/key")[0] == key.encode()
        except StoreError as error:
            if error.code in NOT_THERE:
                return False
            raise

    def close(self) -> None:
        """Remove all that was published."""
        for key in self._keys:
            for each in self._bucket.listed(f"{self._bucket.prefix}{key}/"):
                self._bucket.delete(each.key)
