"""The status page of a recovery manager, its metrics and its health, over HTTP: all of what the last scan has left.

Who may look: on a loopback address, whoever is on this machine; the names by which a browser may call it are fixed, so
that no page of another site can read it by way of a name of its own (DNS rebinding). On any other address, who has the
token. Who may ask for a scan: who has the token, and not by way of another site's page.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from recovery.manager import RecoveryManager
from recovery.page import POLICY, page, verdict
from txpool.address import Address, host_of, is_loopback
from txpool.errors import ConfigurationError
from txpool.metrics import arm
from txpool.pool.pool import all_statistics
from txpool.properties import Secret

logger = logging.getLogger("txpool.recovery.status")

_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
#: Periods without a completed scan after which the manager is taken for stuck, and seconds on top of them.
_PATIENCE, _GRACE = 3, 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    body: str | bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    challenge: bool = False


class StatusServer:
    """Serves one manager's status, in threads of its own, at `status.address` and with `status.token`.

    Errors: ConfigurationError where the address cannot be served.
    """

    def __init__(self, manager: RecoveryManager, address: Address, token: Secret | None = None) -> None:
        self._manager = manager
        self._token = token
        self._open_to_all = address.loopback
        try:
            self._server = _Server(address, lambda *arguments: _Handler(self, *arguments))
        except OSError as error:
            raise ConfigurationError(
                f"the status page cannot be served at status.address = {address}: {error.strerror or error}"
            ) from error
        host, port = self._server.server_address[:2]
        self._at = Address(str(host), port)
        arm()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="txpool-status", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self._at}/"

    def close(self) -> None:
        """Stop serving; an answer on its way may be cut off."""
        self._closing = True
        socket.create_connection((self._at.host, self._at.port)).close()  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()

    def answer(self, request: BaseHTTPRequestHandler) -> Answer:
        """The answer to a request, whatever it is."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        found = _ROUTES.get((request.command, request.path.partition("?")[0]))
        if found is None:
            return Answer("there is nothing here\n", status=HTTPStatus.NOT_FOUND)
        return found(self, request)

    # -- who may ----------------------------------------------------------------------------------------------------

    def _refusal(self, request: BaseHTTPRequestHandler) -> Answer | None:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if self._open_to_all and not is_loopback(host_of(host)):
            return Answer(
                "this page answers to 127.0.0.1 and localhost; a proxy sends one of them as Host\n",
                status=HTTPStatus.MISDIRECTED_REQUEST,
            )
        elsewhere = request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
        writes = request.command not in ("GET", "HEAD")
        if (origin is not None and origin != f"http://{host}") or (writes and elsewhere):
            return Answer("a page of another site cannot ask this\n", status=HTTPStatus.FORBIDDEN)
        if writes and self._token is None:
            return Answer("status.token is not set, so this page only shows\n", status=HTTPStatus.FORBIDDEN)
        if (writes or not self._open_to_all) and not self._has_token(request.headers.get("Authorization", "")):
            return Answer(
                "status.token is wanted, as a bearer token or a password\n",
                _TEXT,
                HTTPStatus.UNAUTHORIZED,
                challenge=True,
            )
        return None

    def _has_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        wanted = "" if self._token is None else self._token.reveal()
        return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())

    # -- what there is ----------------------------------------------------------------------------------------------

    def _page(self, _: BaseHTTPRequestHandler) -> Answer:
        manager = self._manager
        text = page(
            manager.watch,
            title=f"Recovery of {manager.whose}",
            period=manager.period,
            pools=all_statistics(),
            acts=self._token is not None,
        )
        return Answer(text, _HTML)

    def _metrics(self, request: BaseHTTPRequestHandler) -> Answer:
        try:
            from txpool.metrics import prometheus
        except ConfigurationError as error:
            return Answer(f"{error}\n", status=HTTPStatus.NOT_IMPLEMENTED)
        return Answer(*prometheus.text(request.headers.get("Accept", "")))

    def _health(self, _: BaseHTTPRequestHandler) -> Answer:
        watch = self._manager.watch
        quiet = watch.quiet
        if watch.failure:
            return Answer(f"the last scan failed: {watch.failure}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        if quiet > _PATIENCE * self._manager.period + _GRACE:
            text = f"no scan was completed for {quiet:.0f} s\n"
            return Answer(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Answer(f"recovery works: {verdict(watch).headline.lower()}\n")

    def _in_doubt(self, _: BaseHTTPRequestHandler) -> Answer:
        seen = self._manager.watch.overview
        found = {"at": None, "in_doubt": []} if seen is None else seen.as_dict()
        return Answer(json.dumps(found, indent=2), _JSON)

    def _scan(self, _: BaseHTTPRequestHandler) -> Answer:
        logger.warning("a scan was asked for on the status page")
        self._manager.scan_soon()
        return Answer("the next scan begins now\n", status=HTTPStatus.ACCEPTED)


_ROUTES: dict[tuple[str, str], Callable[[StatusServer, BaseHTTPRequestHandler], Answer]] = {
    ("GET", "/"): StatusServer._page,
    ("GET", "/metrics"): StatusServer._metrics,
    ("GET", "/healthz"): StatusServer._health,
    ("GET", "/api/in-doubt"): StatusServer._in_doubt,
    ("POST", "/api/scan"): StatusServer._scan,
}


class _Server(ThreadingHTTPServer):
    """Without a look-up of its own name, which may hang."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("a request of %s was cut off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "txpool-recovery", ""
    protocol_version = "HTTP/1.1"
    #: Seconds that a client may take over its request.
    timeout = 10

    def __init__(self, status: StatusServer, *arguments: object) -> None:
        self._status = status
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        answer = self._status.answer(self)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        # What a request brings beside its head is not read.
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", POLICY)
        if answer.challenge:
            self.send_header("WWW-Authenticate", 'Basic realm="txpool: any name, and status.token as the password"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the names are http.server's

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's name
        logger.debug(format, *arguments)
