"""The part of a bucket in which a datasource publishes: requests, and what is hidden there.

    <prefix>.txpool/identity            a random identity; when it was written is the generation
    <prefix>.txpool/staged/<gtrid>+<random>/<n>
                                        the journal: the n-th upload of a transaction, with its key
    <prefix>.txpool/staged/…/swept      recovery has taken the transaction's process for dead, and removes this
    <prefix>.txpool/prepared/<xid>      the manifest, which is the yes: which uploads are completed

A name in it is a claim. It counts only if the store says that the bucket's owner has written it, or a configured one.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from txpool.config.secrets import redact
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.resources.files.place import HIDDEN

#: The value of prepared.owners that trusts everybody who can write there.
ANY: Final = "any"
#: The metadata by which an object says which upload of which transaction has made it.
MARK: Final = "txpool"
#: What stores answer about what is not there, and where a condition was not met. A bare 404 may be a proxy's: it counts
#: only of a HEAD, whose answer has no more.
NOT_THERE: Final = frozenset({"NoSuchKey", "NoSuchUpload"})
_NO_VERSION: Final = NOT_THERE | {"404", "NoSuchVersion", "NotFound"}
TAKEN: Final = frozenset({"409", "412", "ConditionalRequestConflict", "PreconditionFailed"})
REFUSED: Final = frozenset({"403", "AccessDenied", "NotImplemented", "MethodNotAllowed"})
#: How long a request may take to connect, and to be answered, in seconds.
_CONNECT: Final = 10
_ANSWER: Final = 60
#: How often a request is tried whose answer is lost.
_ATTEMPTS: Final = 5
#: How many objects one request removes.
_MOST: Final = 1000
_IDENTITY = re.compile(r"[0-9a-f]{32}")


@cache
def _loader() -> Any:
    from botocore.loaders import create_loader

    return create_loader()


class StoreError(OperationalError):
    """What an object store has answered, by its own word; the code is empty if there was no answer."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Listed(NamedTuple):
    """An object, as a listing shows it."""

    key: str
    owner: str
    etag: str
    version: str = ""


def require_client(datasource: str, requirement: str) -> None:
    """ConfigurationError if botocore is missing."""
    try:
        import_module("botocore.session")
    except ImportError as error:
        raise ConfigurationError(
            f"datasource {datasource}: driver = s3 needs botocore: pip install '{requirement}' ({described(error)})"
        ) from error


class Bucket:
    """The part of a bucket in which a datasource publishes. Thread-safe. No I/O before its methods."""

    def __init__(
        self,
        name: str,
        url: str,
        options: Mapping[str, Any],
        account: str = "",
        owners: tuple[str, ...] = (),
        *,
        hidden: str = HIDDEN,
    ) -> None:
        self.name = name
        self.bucket, _, prefix = url.partition("://")[2].partition("/")
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.hidden = f"{self.prefix}{hidden}/"
        self.account = account
        self._options = options
        self._owners = frozenset(owners)
        self._bucket_owner = ""
        self._clients: dict[tuple[int, bool], Any] = {}
        self._found: dict[int, Any] = {}

    @property
    def shown(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def manifest_key(self, xid: str) -> str:
        return f"{self.hidden}prepared/{xid}"

    def staged_key(self, staging: str, name: str | int = "") -> str:
        return f"{self.hidden}staged/{staging}/{name}"

    # -- requests -------------------------------------------------------------------------------------------------

    def call(self, operation: str, *, once: bool = False, **parameters: Any) -> Any:
        """One operation of the store's, which is tried again if the answer is lost, but for `once`. StoreError."""
        from botocore.exceptions import BotoCoreError, ClientError

        owner = {"ExpectedBucketOwner": self.account} if self.account else {}
        try:
            return getattr(self._client(once), operation)(Bucket=self.bucket, **owner, **parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise StoreError(f"{self.name}: {self.shown}: {described(error)}", code) from error
        except BotoCoreError as error:
            told = redact(described(error))  # it has the endpoint's url
            raise StoreError(f"{self.name}: {self.shown} does not answer: {told}", "") from None

    def _client(self, once: bool) -> Any:
        key = os.getpid(), once  # a child of a fork uses no connection of its parent's
        found = self._clients.get(key)
        if found is None:
            found = self._clients.setdefault(key, self._connected(once))
        return found

    def _connected(self, once: bool) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        options = self._renamed()
        style = {"addressing_style": options.pop("addressing_style")} if "addressing_style" in options else None
        retries = {"mode": "standard", "total_max_attempts": 1 if once else _ATTEMPTS}
        config = Config(connect_timeout=_CONNECT, read_timeout=_ANSWER, retries=retries, s3=style, tcp_keepalive=True)
        try:
            session = Session()
            session.register_component("data_loader", _loader())  # it keeps what it has read: the larger part of it
            return session.create_client("s3", config=config, **options)
        except Exception as error:
            told = redact(described(error))
            raise OperationalError(f"{self.name}: no client of S3 can be made: {told}") from None

    def _renamed(self) -> dict[str, Any]:
        options = dict(self._options)
        renamed = {"user": "aws_access_key_id", "password": "aws_secret_access_key"}
        return options | {theirs: options.pop(ours) for ours, theirs in renamed.items() if ours in options}

    def access(self) -> dict[str, Any]:
        """What Arrow's client is made with, to read as this one does. Secrets are in it: never log or keep them."""
        options, place = self._renamed(), self._client(once=False).meta
        names = ("access_key_id", "secret_access_key", "session_token")
        keys = [options.get(f"aws_{name}") for name in names]
        if keys[0] is None:
            keys = list(self._credentials())
        access = {
            **dict(zip(("access_key", "secret_key", "session_token"), keys, strict=True)),
            "region": place.region_name,
            "endpoint_override": place.endpoint_url,
            "force_virtual_addressing": ".amazonaws." in place.endpoint_url and "." not in self.bucket,
        }
        return access | ({"tls_ca_file_path": options["verify"]} if options.get("verify") else {})

    def _credentials(self) -> tuple[str, str, str | None]:
        """Those of S3's own sources, as they are now."""
        from botocore.session import Session

        try:
            if os.getpid() not in self._found:
                self._found[os.getpid()] = Session().get_credentials()
            found = self._found[os.getpid()].get_frozen_credentials()
        except Exception as error:
            told = redact(described(error))
            raise OperationalError(f"{self.name}: no credentials of S3 can be had: {told}") from None
        return found.access_key, found.secret_key, found.token

    def read(self, key: str, **condition: Any) -> tuple[bytes, Any]:
        """An object's content, and the answer's other fields. StoreError; its code is in NOT_THERE if there is none."""
        from botocore.exceptions import BotoCoreError

        answer = self.call("get_object", Key=key, **condition)
        try:
            return answer["Body"].read(), answer
        except BotoCoreError as error:
            raise StoreError(f"{self.name}: {self.shown}: {redact(described(error))}", "") from None

    def put_new(self, key: str, content: str | bytes, *, once: bool = False) -> bool:
        """Write an object, unless there is one; whether it was written. What was sent `once` never appears again."""
        body = content.encode() if isinstance(content, str) else content
        try:
            self.call("put_object", once=once, Key=key, Body=body, IfNoneMatch="*")
        except StoreError as error:
            if error.code not in TAKEN:
                raise
            return False
        return True

    def replace(self, key: str, content: str, etag: str) -> bool:
        """Write an object if it is still the one of this ETag; whether it was written. It was not, if it is gone."""
        try:
            self.call("put_object", Key=key, Body=content.encode(), IfMatch=etag)
        except StoreError as error:
            if error.code not in TAKEN | NOT_THERE:
                raise
            return False
        return True

    def complete(self, key: str, upload: str, parts: Iterable[str], **condition: Any) -> None:
        """Let an upload become the object, of these parts in their order. StoreError."""
        listed = {"Parts": [{"PartNumber": number, "ETag": part} for number, part in enumerate(parts, 1)]}
        self.call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=listed, **condition)

    def head(self, key: str, **version: Any) -> Any:
        """What the store says of an object, or of one version of it; None if there is none."""
        try:
            return self.call("head_object", Key=key, **version)
        except StoreError as error:
            if error.code not in _NO_VERSION:
                raise
            return None

    def delete(self, key: str) -> None:
        """Remove an object. Nothing if it is not there."""
        self.call("delete_object", Key=key)

    def delete_all(self, keys: list[str]) -> None:
        """The same of many. StoreError if one is left."""
        for start in range(0, len(keys), _MOST):
            some = [{"Key": key} for key in keys[start : start + _MOST]]
            answer = self.call("delete_objects", Delete={"Objects": some, "Quiet": True})
            for error in answer.get("Errors", ()):
                shown = f"{error.get('Code')}: {error.get('Message')}"
                raise StoreError(f"{self.name}: {error['Key']} cannot be removed: {shown}", str(error.get("Code", "")))

    def abort(self, key: str, upload: str) -> None:
        """Drop an upload with its parts. Nothing if it is not there."""
        try:
            self.call("abort_multipart_upload", Key=key, UploadId=upload)
        except StoreError as error:
            if error.code not in NOT_THERE:
                raise

    def has_upload(self, key: str, upload: str) -> bool:
        """Whether it is there, neither completed nor dropped."""
        try:
            self.call("list_parts", Key=key, UploadId=upload, MaxParts=1)
        except StoreError as error:
            if error.code not in NOT_THERE:
                raise
            return False
        return True

    def listed(self, prefix: str) -> Iterator[Listed]:
        """The objects whose keys begin so, and whose they are."""
        token: dict[str, Any] = {}
        while True:
            page = self.call("list_objects_v2", Prefix=prefix, FetchOwner=True, **token)
            for each in page.get("Contents", ()):
                yield Listed(each["Key"], each.get("Owner", {}).get("ID", ""), each["ETag"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _versions(self, key: str) -> list[Listed]:
        """The newest versions of an object; where the store shows none, the object itself."""
        try:
            page = self.call("list_object_versions", Prefix=key)
        except StoreError as error:
            if error.code not in REFUSED:
                raise
            return [each for each in self.listed(key) if each.key == key]
        return [
            Listed(key, each.get("Owner", {}).get("ID", ""), each["ETag"], each.get("VersionId", "null"))
            for each in page.get("Versions", ())
            if each["Key"] == key
        ]

    # -- whose it is ----------------------------------------------------------------------------------------------

    def is_ours(self, found: Listed) -> bool:
        """Whether the store says that it is the bucket's owner's, or a configured one's."""
        if ANY in self._owners or found.owner in self._owners:
            return True
        if not self._bucket_owner:
            try:
                self._bucket_owner = self.call("get_bucket_acl")["Owner"]["ID"]
            except StoreError as error:
                if error.code not in REFUSED:
                    raise
                raise OperationalError(
                    f"{self.name}: it is not known whose {self.bucket} is, so that nothing there counts: allow "
                    f"s3:GetBucketAcl, or write its owner's canonical id into prepared.owners ({described(error)})"
                ) from error
        return bool(found.owner) and found.owner == self._bucket_owner

    def shows(self, key: str, mark: str) -> bool:
        """Whether an object that is ours says that this upload has made it; also one that was overwritten since."""
        for each in self._versions(key):
            version: dict[str, Any] = {} if each.version in ("", "null") else {"VersionId": each.version}
            found = self.head(key, **version)
            if found is not None and found["Metadata"].get(MARK) == mark and self.is_ours(each):
                return True
        return False

    def _identity(self) -> tuple[str, str]:
        key = f"{self.hidden}identity"
        try:
            content, answer = self.read(key)
        except StoreError as error:
            if error.code != "NoSuchKey":
                raise
            self.put_new(key, secrets.token_hex(16))  # or another process was faster
            content, answer = self.read(key)
        found = content.decode("ascii", "replace")
        if not _IDENTITY.fullmatch(found):
            raise OperationalError(
                f"{self.name}: s3://{self.bucket}/{key} is no identity. Nothing was done. Was it overwritten? Put its "
                "former version back; without one, and with nothing prepared there, remove it"
            )
        return found, answer["LastModified"].isoformat()

    def identity(self) -> str:
        return self._identity()[0]

    def generation(self) -> str:
        """It changes if the objects were copied here, as by a restore: a copy is written later."""
        return self._identity()[1]
