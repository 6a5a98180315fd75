"""The status page of a recovery manager, its metrics and its health, over HTTP: all of what the last scan has left.

Who may look: on a loopback address, whoever is on this machine; the names by which a browser may call it are fixed, so
that no page of another site can read it by way of a name of its own (DNS rebinding). On any other address, who has the
token. Who may ask for a scan: who has the token, and not by way of another site's page.

Every answer comes from memory, and from one thread, which `recovery.serving` keeps from whatever clients do.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from recovery.manager import RecoveryManager
from recovery.operator.last_scan import Overview
from recovery.service.page import POLICY, page, verdict
from recovery.service.serving import Limits, RequestServer
from txpool.config.address import Address, host_of, is_loopback
from txpool.config.properties import Secret
from txpool.errors import ConfigurationError
from txpool.metrics import arm
from txpool.pool.pool import all_statistics

logger = logging.getLogger("txpool.recovery.status")

_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
#: Periods without a completed scan after which the manager is taken for stuck, and seconds on top of them.
_MISSED_PERIODS, _GRACE_SECONDS = 3, 60.0
#: Transactions and branches, together, of which the list of what is in doubt tells at most.
_MOST_LISTED = 20_000
#: Seconds of a processor from which on a page is worth keeping for as long as a second.
_COSTLY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent back."""

    body: str | bytes
    content_type: str = _TEXT
    status: HTTPStatus = HTTPStatus.OK
    challenge: bool = False


class StatusServer:
    """Serves one manager's status, in a thread of its own, at `status.address` and with `status.token`.

    Errors: ConfigurationError where the address cannot be served.
    """

    def __init__(
        self, manager: RecoveryManager, address: Address, token: Secret | None = None, limits: Limits | None = None
    ) -> None:
        self._manager = manager
        self._token = token
        self._open_to_all = address.loopback
        #: What was said last of a token that cannot be read, and of an answer that cannot be made.
        self._unreadable = self._failure = ""
        self._cached_list: tuple[Overview | None, Response] | None = None
        self._cached_page: tuple[Overview | None, str, float, Response] | None = None
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
        """Where it is."""
        return f"http://{self._server.address}/"

    def close(self) -> None:
        """Stop serving; an answer on its way may be cut off."""
        self._server.close()

    def _respond(self, head: bytes, refused: HTTPStatus | None) -> tuple[bytes, bytes]:
        request = _Request(self, head, refused)
        return request.head.getvalue(), request.body

    def respond(self, request: BaseHTTPRequestHandler) -> Response:
        """The answer to a request, whatever it is."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        method = "GET" if request.command == "HEAD" else request.command
        found = _ROUTES.get((method, request.path.partition("?")[0]))
        if found is None:
            return Response("there is nothing here\n", status=HTTPStatus.NOT_FOUND)
        return found(self, request)

    def failed(self, error: Exception) -> Response:
        """The answer where none could be made; said once, however often it is asked for."""
        if (failure := f"{type(error).__name__}: {error}") != self._failure:
            cause = None if isinstance(error, OSError) else error  # the system's own word is enough
            logger.error("a request of the status page could not be answered: %s", failure, exc_info=cause)
            self._failure = failure
        text = "this could not be answered; the daemon's log says why\n"
        return Response(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    # -- who may ----------------------------------------------------------------------------------------------------

    def _refusal(self, request: BaseHTTPRequestHandler) -> Response | None:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if self._open_to_all and not is_loopback(host_of(host)):
            return Response(
                "this page answers to 127.0.0.1 and localhost; a proxy sends one of them as Host\n",
                status=HTTPStatus.MISDIRECTED_REQUEST,
            )
        elsewhere = request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
        writes = request.command not in ("GET", "HEAD")
        if (origin is not None and origin != f"http://{host}") or (writes and elsewhere):
            return Response("a page of another site cannot ask this\n", status=HTTPStatus.FORBIDDEN)
        if writes and self._token is None:
            return Response("status.token is not set, so this page only shows\n", status=HTTPStatus.FORBIDDEN)
        return None if not writes and self._open_to_all else self._refusal_without_token(request)

    def _refusal_without_token(self, request: BaseHTTPRequestHandler) -> Response | None:
        wanted = self._expected_token()
        if wanted is None:
            text = "status.token cannot be read now, so nobody has it; the daemon's log says why\n"
            return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        if not _holds_token(wanted, request.headers.get("Authorization", "")):
            return Response(
                "status.token is wanted, as a bearer token or a password\n",
                _TEXT,
                HTTPStatus.UNAUTHORIZED,
                challenge=True,
            )
        return None

    def _expected_token(self) -> str | None:
        """The token, empty where there is none; None where it cannot be read now, which is said once."""
        try:
            token = "" if self._token is None else self._token.reveal()
        except ConfigurationError as error:
            if (reason := str(error)) != self._unreadable:
                logger.error("%s; until then, whatever needs status.token is refused", reason)
                self._unreadable = reason
            return None
        self._unreadable = ""
        return token

    # -- what there is ----------------------------------------------------------------------------------------------

    def _page(self, _: BaseHTTPRequestHandler) -> Response:
        manager, watch = self._manager, self._manager.last_scan
        if self._cached_page is not None:
            seen, failure, until, answer = self._cached_page
            if seen is watch.overview and failure == watch.failure and time.monotonic() < until:
                return answer
        seen, failure, begun = watch.overview, watch.failure, time.thread_time()
        text = page(
            watch,
            title=f"Recovery of {manager.described_nodes}",
            period=manager.period,
            pools=all_statistics(),
            acts=self._token is not None,
        )
        answer = Response(text.encode(), _HTML)
        # Of thousands in doubt it takes long, and whoever asks again and again must not keep the others waiting.
        costly = time.thread_time() - begun > _COSTLY_SECONDS
        self._cached_page = (seen, failure, time.monotonic() + 1.0, answer) if costly else None
        return answer

    def _metrics(self, request: BaseHTTPRequestHandler) -> Response:
        try:
            from txpool.metrics import prometheus
        except ConfigurationError as error:
            return Response(f"{error}\n", status=HTTPStatus.NOT_IMPLEMENTED)
        return Response(*prometheus.text(request.headers.get("Accept", "")))

    def _health(self, _: BaseHTTPRequestHandler) -> Response:
        watch = self._manager.last_scan
        quiet = watch.seconds_since_scan
        if watch.failure:
            return Response(f"the last scan failed: {watch.failure}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        if quiet > _MISSED_PERIODS * self._manager.period + _GRACE_SECONDS:
            text = f"no scan was completed for {quiet:.0f} s\n"
            return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(f"recovery works: {verdict(watch).headline.lower()}\n")

    def _in_doubt(self, _: BaseHTTPRequestHandler) -> Response:
        seen = self._manager.last_scan.overview
        # Made once for each scan: it may be long, and connections share it.
        if self._cached_list is None or self._cached_list[0] is not seen:
            self._cached_list = seen, _list_response(seen)
        return self._cached_list[1]

    def _scan(self, _: BaseHTTPRequestHandler) -> Response:
        logger.warning("a scan was asked for on the status page")
        self._manager.scan_soon()
        return Response("the next scan begins now\n", status=HTTPStatus.ACCEPTED)


_ROUTES: dict[tuple[str, str], Callable[[StatusServer, BaseHTTPRequestHandler], Response]] = {
    ("GET", "/"): StatusServer._page,
    ("GET", "/metrics"): StatusServer._metrics,
    ("GET", "/healthz"): StatusServer._health,
    ("GET", "/api/in-doubt"): StatusServer._in_doubt,
    ("POST", "/api/scan"): StatusServer._scan,
}


def _list_response(seen: Overview | None) -> Response:
    if seen is not None and sum(1 + len(each.branches) for each in seen.in_doubt) > _MOST_LISTED:
        text = f"{len(seen.in_doubt)} transactions in doubt are too many for here: txpool-recovery list --json\n"
        return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
    found = {"at": None, "in_doubt": []} if seen is None else seen.as_dict()
    return Response(json.dumps(found, indent=2).encode(), _JSON)


def _holds_token(wanted: str, authorization: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


class _Request(BaseHTTPRequestHandler):
    """One request, read from its whole head: what comes after it is not read. The reply is `head` and `body`."""

    server_version, sys_version = "txpool-recovery", ""
    protocol_version = "HTTP/1.1"
    # Of a request that names none; the one that http.server takes has answers without a head.
    default_request_version = "HTTP/1.0"

    def __init__(self, status: StatusServer, head: bytes, refused: HTTPStatus | None) -> None:
        # The base class's own would read from a socket.
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

    def _send(self, answer: Response) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
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
            self.body = body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For http.server, which refuses what is no request; nothing of the request is sent back."""
        status = HTTPStatus(code)
        self._send(Response(f"{status.phrase.lower()}\n", status=status))

    def handle_expect_100(self) -> bool:
        return True  # nothing is waited for: the answer itself follows

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        logger.debug("%r: %s", self.requestline, code)
