"""What gunicorn serves: a plain WSGI application, and a Flask one below /flask, behind one middleware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import flask

from tests.integration.web.served import arm, configure, insert, session, wait
from txpool.web.wsgi import TransactionMiddleware

configure()
#: Made before the workers are forked, where they are.
first_session = session()


def plain(environ: Any, start_response: Any) -> Iterable[bytes]:
    arm(environ["QUERY_STRING"])
    path = environ["PATH_INFO"]
    body: Iterable[bytes] = [b"done"]
    if path == "/transfer":
        insert("one", "two")
    elif path == "/wait":
        insert("one", "two")
        wait()
    elif path == "/generate":
        body = _generated()
    elif path == "/endless":
        insert("one", "two")
        body = iter(lambda: b"x" * 65536, b"")
    elif path == "/upload":
        insert("one", "two")
        insert("one", number=int(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
    elif path == "/session":
        body = [f"{first_session} {session()}".encode()]
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-App", "yes")])
    return body


def _generated() -> Iterator[bytes]:
    yield b"one "
    insert("one", "two")
    yield b"two"


flask_app = flask.Flask(__name__)


@flask_app.post("/flask/transfer")
def transfer() -> str:
    insert("one", "two")
    return "done"


@flask_app.post("/flask/upload")
def upload() -> str:
    insert("one", "two")
    return f"{len(flask.request.get_data())}"


@flask_app.post("/flask/conflict")
def conflict() -> str:
    insert("one", "two")
    flask.abort(409)


@flask_app.post("/flask/failure")
def failure() -> str:
    insert("one", "two")
    raise ZeroDivisionError


def both(environ: Any, start_response: Any) -> Iterable[bytes]:
    below = environ["PATH_INFO"].startswith("/flask/")
    return (flask_app if below else plain)(environ, start_response)


application = TransactionMiddleware(both)
