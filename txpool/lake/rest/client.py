"""pyiceberg's client of a REST catalog, whose requests end, and which runs no code that a server or a table names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pyiceberg.catalog.rest import AUTH, RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, RESTError
from requests import RequestException

from txpool.errors import OperationalError, described
from txpool.lake.changes import namespaces

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from requests import Session

    from txpool.lake.rest.snapshots import Reference

#: How long a request may take to connect, and to be answered, in seconds.
_TIMES: Final = (10, 60)
#: By which pyiceberg asks the server for credentials of the tables' files.
_DELEGATION: Final = "X-Iceberg-Access-Delegation"
#: It was dropped since, or is none that a branch of this user's can be in.
_NO_NAMESPACE: Final = (NoSuchNamespaceError, ForbiddenError)
_NO_TABLE: Final = (NoSuchTableError, ForbiddenError, ValidationError)


class TableGone(OperationalError):
    """The catalog has no such table, as far as this user may see."""


class RestClient(RestCatalog):
    """A REST catalog. Making it asks the server for its configuration: OperationalError if it does not give that."""

    def __init__(self, name: str, files: FileIO, **properties: str) -> None:
        #: By what the tables' files are read: neither the server nor a table says.
        self._files = files
        try:
            super().__init__(name, **properties)
        except (RESTError, RequestException) as error:
            raise OperationalError(
                f"{name}: the catalog at {properties['uri']} does not serve: {described(error)}. Nothing was done"
            ) from error

    def _fetch_config(self) -> None:
        auth = self.properties.get(AUTH)
        super()._fetch_config()
        self.properties[AUTH] = auth  # the server's may name a class of any module, and what that is called with

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.headers.pop(_DELEGATION, None)
        session.request = partial(session.request, timeout=_TIMES)  # type: ignore[method-assign]
        return session

    def supports_server_side_planning(self) -> bool:
        return False  # the server does not know what is staged

    def _load_file_io(self, properties: Mapping[str, str] = {}, location: str | None = None) -> FileIO:
        return self._files

    def tables(self) -> Iterator[Table]:
        """All tables that this user may read."""
        for namespace in namespaces(self, passed_over=_NO_NAMESPACE):
            with suppress(*_NO_NAMESPACE):
                for name in self.list_tables(namespace):
                    with suppress(*_NO_TABLE):
                        yield self.load_table(name)

    def table_of(self, reference: Reference) -> Table:
        """The table of a reference, also if it was renamed. TableGone."""
        try:
            found: Table = self.load_table(reference.table)
            if str(found.metadata.table_uuid) == reference.uuid:
                return found
        except (NoSuchTableError, NoSuchNamespaceError):
            pass
        for each in self.tables():
            if str(each.metadata.table_uuid) == reference.uuid:
                return each
        name = ".".join(reference.table)
        raise TableGone(
            f"the catalog at {self.uri} has no table {name} with the uuid {reference.uuid}: it was dropped, or the uri "
            "leads to another catalog. Nothing was removed. Register the table again from its metadata, or write "
            f"dropped.tables = {name} into recovery's file of this datasource if it is gone for good"
        )


def properties_of(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """pyiceberg's properties of a catalog: a user and a password are its credential, a password alone its token.

    Those of a bucket are the warehouse's.
    """
    found = {"uri": uri} | {name: value for name, value in options.items() if not name.startswith("s3.")}
    user, password = found.pop("user", None), found.pop("password", None)
    if password is not None:
        found |= {"token": password} if user is None else {"credential": f"{user}:{password}"}
    return found
