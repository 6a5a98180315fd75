"""StatusServer: a recovery manager's status page, metrics and health over HTTP, all from its last scan.

On a loopback address, everybody on this machine may read. Only fixed Host names are accepted there, so that another
site's page cannot read by a host name of its own (DNS rebinding). On any other address, a reader needs the token,
except for what `status.public` names. A request for a scan always needs the token, and is refused to
other sites' pages.

Every answer comes from memory. One thread serves all requests: see `recovery.service.serving`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from recovery.manager import RecoveryManager
from recovery.operator.last_scan import Overview, Standing
from recovery.service.page import POLICY, page, state_line
from recovery.service.serving import Limits, RequestServer
from txpool.config.address import Address, host_of, is_loopback
from txpool.config.properties import Secret
from txpool.errors import ConfigurationError, described
from txpool.metrics import arm
from txpool.pool.numbers.registry import all_statistics

logger = logging.getLogger("txpool.recovery.status")

_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
#: How many transactions and branches together `/api/in-doubt` lists at most, and how many transactions in one part.
_MOST_LISTED = 20_000
_MOST_IN_PART = 1_000
#: A page that took more seconds of CPU time than this is cached for one second.
_COSTLY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    body: str | bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    challenge: bool = False


class StatusServer:
    """Serves one manager's status in a thread of its own, until it is closed.

    Those of "healthz" and "metrics" that are `public` take no token, whatever the address.

    Errors: ConfigurationError if the address cannot be served.
    """

    def __init__(
        self,
        manager: RecoveryManager,
        address: Address,
        token: Secret | None = None,
        limits: Limits | None = None,
        *,
        public: Collection[str] = (),
    ) -> None:
        self._manager = manager
        self._token = token
        self._open_to_all = address.loopback
        self._public = frozenset(f"/{name}" for name in public)
        #: The last errors logged: the token could not be read, a request could not be answered.
        self._unreadable = self._failure = ""
        self._cached_list: tuple[Overview | None, Response] | None = None
        self._cached_page: tuple[Standing, float, Response] | None = None
        self._routes: dict[tuple[str, str], Callable[[BaseHTTPRequestHandler], Response]] = {
            ("GET", "/"): self._page,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/healthz"): self._health,
            ("GET", "/api/in-doubt"): self._in_doubt,
            ("GET", "/api/outboxes"): self._outboxes,
            ("POST", "/api/scan"): self._scan,
        }
        try:
            self._server = RequestServer(address, self._respond, limits or Limits())
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"the status page cannot be served at status.address = {address}: {reason}"
            ) from error
        arm()

    @property
    def url(self) -> str:
        """The url of the page."""
        return f"http://{self._server.address}/"

    def close(self) -> None:
        """Stop serving. A response in progress may be cut off."""
        self._server.close()

    def _respond(self, head: bytes, refused: HTTPStatus | None) -> tuple[bytes, bytes]:
        request = _Request(self, head, refused)
        return request.head.getvalue(), request.body

    def respond(self, request: BaseHTTPRequestHandler) -> Response:
        """The response to any request."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        method = "GET" if request.command == "HEAD" else request.command
        route = self._routes.get((method, request.path.partition("?")[0]))
        if route is None:
            return Response("there is no such page\n", status=HTTPStatus.NOT_FOUND)
        return route(request)

    def failed(self, error: Exception) -> Response:
        """The response to a request that failed with this error. The same error is logged once."""
        if (failure := described(error)) != self._failure:
            cause = None if isinstance(error, OSError) else error  # the system's message is enough
            logger.error("a request of the status page could not be answered: %s", failure, exc_info=cause)
            self._failure = failure
        text = "this request could not be answered; the daemon's log says why\n"
        return Response(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    # -- authorisation --------------------------------------------------------------------------------------------

    def _refusal(self, request: BaseHTTPRequestHandler) -> Response | None:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if self._open_to_all and not is_loopback(host_of(host)):
            return Response(
                "this page accepts only 127.0.0.1 and localhost as Host; a proxy must send one of them\n",
                status=HTTPStatus.MISDIRECTED_REQUEST,
            )
        elsewhere = request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
        writes = request.command not in ("GET", "HEAD")
        if (origin is not None and origin != f"http://{host}") or (writes and elsewhere):
            return Response("a page of another site cannot make this request\n", status=HTTPStatus.FORBIDDEN)
        if writes and self._token is None:
            return Response("status.token is not set, so this page is read-only\n", status=HTTPStatus.FORBIDDEN)
        if not writes and (self._open_to_all or request.path.partition("?")[0] in self._public):
            return None
        return self._refusal_without_token(request)

    def _refusal_without_token(self, request: BaseHTTPRequestHandler) -> Response | None:
        token = self._expected_token()
        if token is None:
            text = "status.token cannot be read now, so requests that need it are refused; the daemon's log says why\n"
            return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        if not _holds_token(token, request.headers.get("Authorization", "")):
            return Response(
                "this request needs status.token, as a bearer token or as the password\n",
                _TEXT,
                HTTPStatus.UNAUTHORIZED,
                challenge=True,
            )
        return None

    def _expected_token(self) -> str | None:
        """The token, empty if there is none; None if it cannot be read now, which is logged once."""
        try:
            token = "" if self._token is None else self._token.reveal()
        except ConfigurationError as error:
            if (reason := str(error)) != self._unreadable:
                logger.error("%s; until it can be read, every request that needs status.token is refused", reason)
                self._unreadable = reason
            return None
        self._unreadable = ""
        return token

    # -- routes ----------------------------------------------------------------------------------------------

    def _page(self, _: BaseHTTPRequestHandler) -> Response:
        manager, standing = self._manager, self._manager.last_scan.standing
        if self._cached_page is not None:
            cached, until, response = self._cached_page
            if cached is standing and time.monotonic() < until:
                return response
        began = time.thread_time()
        text = page(
            standing,
            title=f"Recovery of {manager.described_nodes}",
            period=manager.period,
            pools=all_statistics(),
            acts=self._token is not None,
            under_way=manager.last_scan.under_way,
        )
        response = Response(_encoded(text), _HTML)
        # With thousands in doubt, a page takes long: a client that asks for it repeatedly must not delay others.
        costly = time.thread_time() - began > _COSTLY_SECONDS
        self._cached_page = (standing, time.monotonic() + 1.0, response) if costly else None
        return response

    def _metrics(self, request: BaseHTTPRequestHandler) -> Response:
        try:
            from txpool.metrics import prometheus
        except ConfigurationError as error:
            return Response(f"{error}\n", status=HTTPStatus.NOT_IMPLEMENTED)
        return Response(*prometheus.text(request.headers.get("Accept", "")))

    def _health(self, _: BaseHTTPRequestHandler) -> Response:
        standing = self._manager.last_scan.standing
        why = standing.unhealthy(self._manager.period)
        if why:
            return Response(f"{why}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(f"recovery works: {state_line(standing).headline.lower()}\n")

    def _in_doubt(self, request: BaseHTTPRequestHandler) -> Response:
        overview = self._manager.last_scan.overview
        query = request.path.partition("?")[2]
        if query:
            return _part_response(overview, query)
        # Made once for each scan, since it may be long; all connections share it.
        if self._cached_list is None or self._cached_list[0] is not overview:
            self._cached_list = overview, _list_response(overview)
        return self._cached_list[1]

    def _outboxes(self, _: BaseHTTPRequestHandler) -> Response:
        overview = self._manager.last_scan.overview
        found = {"at": None, "outboxes": []} if overview is None else overview.outboxes_as_dict()
        return Response(json.dumps(found, indent=2), _JSON)

    def _scan(self, _: BaseHTTPRequestHandler) -> Response:
        logger.warning("a scan was asked for on the status page")
        self._manager.scan_soon()
        return Response("the next scan begins now\n", status=HTTPStatus.ACCEPTED)


def _encoded(text: str) -> bytes:
    """A name of a file may have bytes that are no text, and an error such a name."""
    return text.encode(errors="backslashreplace")


def _list_response(overview: Overview | None) -> Response:
    count = 0 if overview is None else len(overview.in_doubt)
    if overview is not None and (
        count > _MOST_LISTED or sum(1 + len(each.branches) for each in overview.in_doubt) > _MOST_LISTED
    ):
        text = f"{count} transactions in doubt are too many here: use ?from=0&limit=1000, or txpool-recovery list\n"
        return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
    found = {"at": None, "in_doubt": []} if overview is None else overview.as_dict()
    return Response(json.dumps(found, indent=2).encode(), _JSON)


def _part_response(overview: Overview | None, query: str) -> Response:
    """A part of the list: `from=N&limit=N`. `total` says how many there are after the same scan, which was at `at`."""
    match = re.fullmatch(r"from=([0-9]{1,9})&limit=([0-9]{1,9})", query)
    if match is None:
        return Response("write ?from=0&limit=1000\n", status=HTTPStatus.BAD_REQUEST)
    first, limit = int(match[1]), min(int(match[2]), _MOST_IN_PART)
    found = () if overview is None else overview.in_doubt
    part = [each.as_dict() for each in found[first : first + limit]]
    at = None if overview is None else overview.at
    return Response(json.dumps({"at": at, "total": len(found), "in_doubt": part}, indent=2).encode(), _JSON)


def _holds_token(token: str, authorization: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())


class _Request(BaseHTTPRequestHandler):
    """Parses one request from its complete head; a request's body is not read. The response is `head` and `body`."""

    server_version, sys_version = "txpool-recovery", ""
    protocol_version = "HTTP/1.1"
    # The version of a request that names none. With http.server's default, the response would have no head.
    default_request_version = "HTTP/1.0"

    def __init__(self, status: StatusServer, head: bytes, refused: HTTPStatus | None) -> None:
        # The base class's __init__ is not called: it would read from a socket.
        self._status = status
        self.rfile = BytesIO(head)
        self.wfile = self.head = BytesIO()
        self.body = b""
        self.command, self.requestline, self.request_version = "", "", self.default_request_version
        if refused is None:
            self.handle_one_request()
        else:
            self.send_error(refused)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if re.fullmatch(r"HTTP/1\.[0-9]", self.request_version) and len(self.requestline.split()) == 3:
            return True
        self.request_version = self.default_request_version
        self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        return False

    def do_GET(self) -> None:
        try:
            self._send(self._status.respond(self))
        except Exception as error:
            self._send(self._status.failed(error))

    do_HEAD = do_POST = do_GET  # noqa: N815 - the names are http.server's

    def _send(self, response: Response) -> None:
        body = _encoded(response.body) if isinstance(response.body, str) else response.body
        self.close_connection = True
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", POLICY)
        if response.challenge:
            self.send_header("WWW-Authenticate", 'Basic realm="txpool: any name, and status.token as the password"')
        self.end_headers()
        if self.command != "HEAD":
            self.body = body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by http.server for an invalid request. Nothing of the request is sent back."""
        status = HTTPStatus(code)
        self._send(Response(f"{status.phrase.lower()}\n", status=status))

    def handle_expect_100(self) -> bool:
        return True  # no interim response: the final one follows at once

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        logger.debug("%r: %s", self.requestline, code)
