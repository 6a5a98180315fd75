"""pyiceberg's files in an object store, by botocore. Unlike with Arrow's client, who has read some may fork."""

from __future__ import annotations

import io
from typing import Any, Final

from botocore.exceptions import ClientError
from pyiceberg.io import FileIO, InputFile, OutputFile

from tests.support.s3_server import ObjectStore

NAME: Final = f"{__name__}.ObjectFiles"


def properties_at(store: ObjectStore) -> dict[str, str]:
    """Those of a catalog whose tables' files are there."""
    keys = {"access-key-id": "tests", "secret-access-key": "secret-of-tests", "region": "us-east-1"}
    return {f"s3.{name}": value for name, value in {**keys, "endpoint": store.url}.items()}


def _client(url: str) -> Any:
    return ObjectStore(url, None).client()  # type: ignore[arg-type]  # the process is another's


class _Written(io.BytesIO):
    """What becomes an object as it is closed."""

    def __init__(self, url: str, place: dict[str, str]) -> None:
        super().__init__()
        self._url, self._place = url, place

    def close(self) -> None:
        if not self.closed:
            _client(self._url).put_object(**self._place, Body=self.getvalue())
        super().close()


class ObjectFile(InputFile, OutputFile):
    """One object."""

    def __init__(self, location: str, url: str) -> None:
        super().__init__(location)
        bucket, _, key = location.removeprefix("s3://").partition("/")
        self._url, self._place = url, {"Bucket": bucket, "Key": key}

    def __len__(self) -> int:
        return int(_client(self._url).head_object(**self._place)["ContentLength"])

    def exists(self) -> bool:
        try:
            return len(self) >= 0
        except ClientError:
            return False

    def open(self, seekable: bool = True) -> Any:
        try:
            return io.BytesIO(_client(self._url).get_object(**self._place)["Body"].read())
        except ClientError as error:
            raise FileNotFoundError(self.location) from error

    def to_input_file(self) -> ObjectFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Written(self._url, self._place)


class ObjectFiles(FileIO):
    """All of them."""

    def new_input(self, location: str) -> ObjectFile:
        return ObjectFile(location, self.properties["s3.endpoint"])

    new_output = new_input

    def delete(self, location: Any) -> None:
        """Nothing: no test lets pyiceberg remove a file."""
