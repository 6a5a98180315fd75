"""An object store for tests: moto's server, with what real stores do and it does not.

`python -m tests.support.s3_server FOLDER` serves at a free port, and writes that into FOLDER/ready. What it keeps is
in its memory, and gone with it. A client with the access key `stranger` writes objects that the bucket's
owner does not own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.support.repository import ROOT

ACCOUNT = "123456789012"
STRANGER = "stranger"


@cache
def _client(url: str, user: str, process: int) -> Any:
    from botocore.session import Session

    return Session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=user,
        aws_secret_access_key="secret-of-tests",
    )


class ObjectStore(NamedTuple):
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]

    def client(self, user: str = "tests") -> Any:
        """A client of the test's own, of this process alone."""
        return _client(self.url, user, os.getpid())

    def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)  # of a thousand
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def uploads(self, bucket: str = "bucket") -> list[str]:
        """The keys of all uploads that are neither completed nor aborted."""
        found = self.client().list_multipart_uploads(Bucket=bucket)
        return sorted(each["Key"] for each in found.get("Uploads", ()))


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start one, on a free port of this machine alone."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "tests.support.s3_server", folder]
        log = Path(folder, "log").open("wb")
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not Path(folder, "ready").exists():
                assert process.poll() is None, Path(folder, "log").read_text()
                assert time.monotonic() < deadline, Path(folder, "log").read_text()
                time.sleep(0.05)
            yield ObjectStore(f"http://127.0.0.1:{Path(folder, 'ready').read_text()}", process)
        finally:
            process.kill()
            process.wait(60)
            log.close()


@contextmanager
def store_with_a_bucket() -> Iterator[ObjectStore]:
    """Start one that has the bucket `bucket`."""
    with object_store() as found:
        found.client().create_bucket(Bucket="bucket")
        yield found


def _as_real_stores_do() -> None:
    from moto.s3 import models, responses
    from moto.s3.exceptions import NoSuchUpload, S3ClientError

    class Denied(S3ClientError):
        code = 403

        def __init__(self) -> None:
            super().__init__("AccessDenied", "Access Denied")

    backend = models.S3Backend

    def known(call: Any) -> Any:
        def checked(self: Any, bucket_name: str, multipart_id: str, *arguments: Any, **keywords: Any) -> Any:
            if multipart_id not in self.get_bucket(bucket_name).multiparts:
                raise NoSuchUpload(upload_id=multipart_id)
            return call(self, bucket_name, multipart_id, *arguments, **keywords)

        return checked

    backend.complete_multipart_upload = known(backend.complete_multipart_upload)  # type: ignore[method-assign]
    backend.upload_part = known(backend.upload_part)  # type: ignore[method-assign]
    strangers: set[tuple[str, str]] = set()

    def owned(call: Any) -> Any:
        def written(self: Any) -> Any:
            """Whoever writes an object owns it."""
            of = (self.bucket_name, self.parse_key_name())
            answer = call(self)
            (strangers.add if STRANGER in self.headers.get("Authorization", "") else strangers.discard)(of)
            return answer

        return written

    def listing(call: Any) -> Any:
        def listed(self: Any) -> Any:
            status, headers, body = call(self)
            text = body.decode() if isinstance(body, bytes) else body
            kind = "Version" if "<Version>" in text else "Contents"
            parts = text.split(f"<{kind}>")
            for number, part in enumerate(parts[1:], 1):
                key = part.split("<Key>")[1].split("</Key>")[0]
                if (self.bucket_name, unquote(key)) in strangers:
                    parts[number] = part.replace(models.OWNER, "f" * 64)
            return status, headers, f"<{kind}>".join(parts)

        return listed

    response = responses.S3Response
    response.put_object = owned(response.put_object)  # type: ignore[method-assign]
    response.list_objects_v2 = listing(response.list_objects_v2)  # type: ignore[method-assign]
    response.list_object_versions = listing(response.list_object_versions)  # type: ignore[method-assign]

    def owner_checked(call: Any) -> Any:
        def checked(self: Any, *arguments: Any) -> Any:
            if self.headers.get("x-amz-expected-bucket-owner", ACCOUNT) != ACCOUNT:
                raise Denied
            return call(self, *arguments)

        return checked

    for name in ("put_object", "get_object", "list_objects_v2", "_key_response_post", "delete_object"):
        setattr(response, name, owner_checked(getattr(response, name)))


def main(folder: str) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    _as_real_stores_do()
    application = DomainDispatcherApplication(create_backend_app)
    # One request at a time: a real store completes an upload in one step.
    server = make_server("127.0.0.1", 0, application, threaded=False)
    Path(folder, "new").write_text(str(server.server_port))
    Path(folder, "new").rename(Path(folder, "ready"))
    server.serve_forever()


if __name__ == "__main__":
    os.environ.update(AWS_ACCESS_KEY_ID="tests", AWS_SECRET_ACCESS_KEY="tests", AWS_DEFAULT_REGION="us-east-1")
    main(sys.argv[1])
