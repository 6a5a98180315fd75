"""A REST catalog server for tests: Iceberg's REST specification, for the calls that txpool uses, over an SqlCatalog.

`python -m tests.support.rest_catalog FOLDER 0` serves at a free port, and writes that into FOLDER/ready. The catalog is
an SQLite file in FOLDER, and the warehouse is FOLDER/wh, or where FOLDER/store says: so a server that was killed is
started again, at the same port. Each commit looks at its requirements, and changes the pointer by compare and set: 409
if either fails. A test writes into FOLDER/fault how the next commit of a table that matches it is answered, and into
FOLDER/config what the server tells each client of itself, and of each table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from sqlalchemy import text

from tests.support.object_files import NAME, properties_at
from tests.support.repository import ROOT
from tests.support.s3_server import ObjectStore

#: A namespace of several parts in a path.
_SEPARATOR: Final = "\x1f"
_STATUS: Final = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
    ForbiddenError: 403,
}
_SWAP = text(
    "update iceberg_tables set metadata_location = :after, previous_metadata_location = :before "
    "where catalog_name = 'rest' and table_namespace = :namespace and table_name = :name "
    "and metadata_location = :before"
)


class Server:
    """The catalog behind the calls."""

    def __init__(self, folder: Path) -> None:
        (folder / "wh").mkdir(exist_ok=True)
        self.fault = folder / "fault"
        self._config = folder / "config"
        store = folder / "store"
        where = json.loads(store.read_text()) if store.exists() else {"warehouse": str(folder / "wh")}
        self.catalog = SqlCatalog("rest", uri=f"sqlite:///{folder}/catalog.db", **where)
        self._lock = threading.Lock()

    def config(self) -> dict[str, Any]:
        found = json.loads(self._config.read_text()) if self._config.exists() else {}
        return {"defaults": {}, "overrides": {}, **found}

    def namespaces(self, parent: str) -> dict[str, Any]:
        within = tuple(parent.split(_SEPARATOR)) if parent else ()
        return {"namespaces": [list(each) for each in self.catalog.list_namespaces(within)]}

    def create_namespace(self, body: Any) -> dict[str, Any]:
        self.catalog.create_namespace(tuple(body["namespace"]), body.get("properties", {}))
        return {"namespace": body["namespace"], "properties": body.get("properties", {})}

    def namespace(self, namespace: tuple[str, ...]) -> dict[str, Any]:
        return {"namespace": namespace, "properties": self.catalog.load_namespace_properties(namespace)}

    def drop_namespace(self, namespace: tuple[str, ...]) -> None:
        self.catalog.drop_namespace(namespace)

    def tables(self, namespace: tuple[str, ...]) -> dict[str, Any]:
        if namespace[0] == "forbidden":
            raise ForbiddenError("nobody may list these tables")
        found = self.catalog.list_tables(namespace)
        return {"identifiers": [{"namespace": each[:-1], "name": each[-1]} for each in found]}

    def create_table(self, namespace: tuple[str, ...], body: bytes) -> dict[str, Any]:
        asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
        made = self.catalog.create_table(
            (*namespace, asked.name),
            asked.table_schema,
            asked.location,
            asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            asked.write_order or UNSORTED_SORT_ORDER,
            asked.properties,
        )
        return _loaded(made)

    def load(self, table: tuple[str, ...]) -> dict[str, Any]:
        return {**_loaded(self.catalog.load_table(table)), **self.config().get("of-tables", {})}

    def drop(self, table: tuple[str, ...]) -> None:
        self.catalog.drop_table(table)

    def rename(self, body: Any) -> None:
        source, destination = ((*each["namespace"], each["name"]) for each in (body["source"], body["destination"]))
        self.catalog.rename_table(source, destination)

    def commit(self, table: tuple[str, ...], body: bytes) -> dict[str, Any]:
        asked = CommitTableRequest.model_validate_json(body)
        current = self.catalog.load_table(table)
        for requirement in asked.requirements:
            requirement.validate(current.metadata)
        metadata = update_table_metadata(current.metadata, asked.updates, True, current.metadata_location)
        if metadata == current.metadata:
            return {"metadata-location": current.metadata_location, "metadata": _as_json(metadata)}
        version = SqlCatalog._parse_metadata_version(current.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        after = provider.new_table_metadata_file_location(version)
        ToOutputFile.table_metadata(metadata, current.io.new_output(after))
        values = {"after": after, "before": current.metadata_location, "namespace": ".".join(table[:-1])}
        with self.catalog.engine.begin() as connection:
            if connection.execute(_SWAP, {**values, "name": table[-1]}).rowcount != 1:
                raise CommitFailedException(f"table {'.'.join(table)} has changed meanwhile")
        return {"metadata-location": after, "metadata": _as_json(metadata)}

    def taken_fault(self, body: bytes) -> str:
        """The fault that the next commit of this kind has, which a test has written; it has it once."""
        with self._lock:
            try:
                fault, _, wanted = self.fault.read_text().partition(" ")
            except FileNotFoundError:
                return ""
            if wanted.encode() not in body:
                return ""
            self.fault.unlink()
            return fault


def _loaded(table: Any) -> dict[str, Any]:
    return {"metadata-location": table.metadata_location, "metadata": _as_json(table.metadata), "config": {}}


def _as_json(metadata: TableMetadata) -> Any:
    return json.loads(metadata.model_dump_json())


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    serves: Server

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self, status: int, found: Any) -> None:
        body = b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _route(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [unquote(each) for each in url.path.strip("/").split("/")][1:]
        try:
            found = self._done(parts, parse_qs(url.query), body)
        except Exception as error:
            status = next((each for kind, each in _STATUS.items() if isinstance(error, kind)), 400)
            message = {"message": str(error), "type": type(error).__name__, "code": status}
            self._answer(status, {"error": message})
            return
        if found is not _DROPPED:
            self._answer(204 if found is None else 200, found)

    def _done(self, parts: list[str], query: dict[str, list[str]], body: bytes) -> Any:
        server, method = self.serves, self.command
        if parts == ["config"]:
            return server.config()
        if parts == ["tables", "rename"]:
            return server.rename(json.loads(body))
        namespace = tuple(parts[1].split(_SEPARATOR)) if len(parts) > 1 else ()
        calls: dict[tuple[str, int], Callable[[], Any]] = {
            ("GET", 1): lambda: server.namespaces("".join(query.get("parent", []))),
            ("POST", 1): lambda: server.create_namespace(json.loads(body)),
            ("GET", 2): lambda: server.namespace(namespace),
            ("HEAD", 2): lambda: server.namespace(namespace) and None,
            ("DELETE", 2): lambda: server.drop_namespace(namespace),
            ("GET", 3): lambda: server.tables(namespace),
            ("POST", 3): lambda: server.create_table(namespace, body),
            ("GET", 4): lambda: server.load((*namespace, parts[3])),
            ("HEAD", 4): lambda: server.load((*namespace, parts[3])) and None,
            ("DELETE", 4): lambda: server.drop((*namespace, parts[3])),
            ("POST", 4): lambda: self._commit((*namespace, parts[3]), body),
        }
        return calls[method, len(parts)]()

    def _commit(self, table: tuple[str, ...], body: bytes) -> Any:
        fault = self.serves.taken_fault(body)
        if fault == "die-before":
            os._exit(9)
        if fault in ("refuse", "fail"):  # nothing was done
            return self._faulty(fault)
        found = self.serves.commit(table, body)
        if fault == "die-after":
            os._exit(9)
        if fault.startswith("lost-"):  # it has landed
            return self._faulty(fault.removeprefix("lost-"))
        return found

    def _faulty(self, fault: str) -> Any:
        """`refuse` answers 409, as if a requirement had failed, `fail` 500, `answer` not at all."""
        if fault == "answer":
            self.close_connection = True
            self.connection.close()
            return _DROPPED
        status = 409 if fault == "refuse" else 500
        self._answer(status, {"error": {"message": "a fault of the test's", "type": "Fault", "code": status}})
        return _DROPPED

    def do_GET(self) -> None:
        self._route()

    def do_HEAD(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def do_DELETE(self) -> None:
        self._route()


_DROPPED: Final = object()


class RestServer:
    """A server of a test's, in a process of its own."""

    def __init__(self, folder: Path, store: ObjectStore | None = None) -> None:
        self.folder = folder
        self.store = store
        self._access = {} if store is None else {**properties_at(store), PY_IO_IMPL: NAME}
        if store is not None:
            (folder / "store").write_text(json.dumps({**properties_at(store), "warehouse": "s3://bucket/wh"}))
        self._port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, or start it again at the same port."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        arguments = [sys.executable, "-m", "tests.support.rest_catalog", str(self.folder), str(self._port)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(arguments, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while not ready.exists():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.05)
        self._port = int(ready.read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def ended(self) -> None:
        """Wait until a fault has ended it."""
        assert self.process is not None
        self.process.wait(60)

    def fault(self, fault: str, matching: str = "") -> None:
        """Let the next commit whose body has this text be answered so."""
        (self.folder / "fault").write_text(f"{fault} {matching}")

    @contextmanager
    def config(self, **found: Any) -> Iterator[None]:
        """Let the server tell clients this of itself, for the length of the block."""
        (self.folder / "config").write_text(json.dumps(found))
        try:
            yield
        finally:
            (self.folder / "config").unlink()

    def client(self) -> RestCatalog:
        """A client of the test's own."""
        return RestCatalog("foreign", uri=self.uri, **self._access)


@contextmanager
def rest_server(folder: Path, store: ObjectStore | None = None) -> Iterator[RestServer]:
    """Serve a new catalog, whose files are in this folder, but for those of tables in a bucket."""
    server = RestServer(folder, store)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    Handler.serves = Server(folder)
    served = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    draft = folder / "ready.new"
    draft.write_text(str(served.server_address[1]))
    draft.rename(folder / "ready")
    served.serve_forever()


if __name__ == "__main__":
    main()
